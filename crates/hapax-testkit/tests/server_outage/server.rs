mod broken;
mod contended;
mod dropped;
mod ground;
mod overdue;
mod stopped;
