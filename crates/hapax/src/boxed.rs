//! A source and a publisher whose types are decided at run time.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use hapax_core::{
    Capabilities, Code, Delivery, Error, ErrorKind, Fetched, Outgoing, Publisher, Settlement, Settler, Source,
};

use crate::handler::BoxFuture;

/// A receipt of any source.
pub type BoxReceipt = Arc<dyn Any + Send + Sync>;

/// Any source, for programs that learn from a configuration which one they use. Costs an allocation
/// for each delivery.
pub struct BoxSource(Box<dyn ErasedSource>);

/// The settling half of a [`BoxSource`].
#[derive(Clone)]
pub struct BoxSettler(Arc<dyn ErasedSettler>);

trait ErasedSource: Send {
    fn capabilities(&self) -> Capabilities;
    fn settler(&self) -> BoxSettler;
    fn name(&self) -> String;
    fn prepare(&mut self, in_flight: usize) -> BoxFuture<'_, Result<(), Error>>;
    fn check(&mut self) -> BoxFuture<'_, Result<(), Error>>;
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Fetched<BoxReceipt>, Error>>;
    fn is_connected(&self) -> bool;
    fn close(&mut self) -> BoxFuture<'_, ()>;
}

trait ErasedSettler: Send + Sync {
    fn settle(&self, settlements: Vec<Settlement<BoxReceipt>>) -> BoxFuture<'_, Vec<Result<(), Error>>>;
    fn extend(&self, receipts: Vec<BoxReceipt>) -> BoxFuture<'_, Vec<Result<(), Error>>>;
    fn holds(&self, receipt: &BoxReceipt) -> bool;
}

struct Erase<T>(T);

impl<S: Source> ErasedSource for Erase<S> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn settler(&self) -> BoxSettler {
        BoxSettler(Arc::new(EraseSettler::<S> { settler: self.0.settler() }))
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn prepare(&mut self, in_flight: usize) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.0.prepare(in_flight))
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.0.check())
    }

    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Fetched<BoxReceipt>, Error>> {
        Box::pin(async move {
            Ok(match self.0.next(max).await? {
                Fetched::Batch(deliveries) => {
                    let boxed = |delivery: Delivery<S::Receipt>| {
                        delivery.map_receipt(|receipt| Arc::new(receipt) as BoxReceipt)
                    };
                    Fetched::Batch(deliveries.into_iter().map(boxed).collect())
                }
                Fetched::Lost(lanes) => Fetched::Lost(lanes),
                _ => Fetched::Ended,
            })
        })
    }

    fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

struct EraseSettler<S: Source> {
    settler: S::Settler,
}

fn unbox<R: Clone + 'static>(receipt: &BoxReceipt) -> Result<R, Error> {
    (&**receipt as &dyn Any).downcast_ref::<R>().cloned().ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            Code::NotFound,
            "a delivery was settled with another source than its own",
        )
    })
}

impl<S: Source> ErasedSettler for EraseSettler<S> {
    fn settle(&self, settlements: Vec<Settlement<BoxReceipt>>) -> BoxFuture<'_, Vec<Result<(), Error>>> {
        Box::pin(async move {
            let unboxed = settlements
                .into_iter()
                .map(|Settlement { receipt, verdict }| Ok(Settlement { receipt: unbox(&receipt)?, verdict }))
                .collect::<Result<Vec<_>, Error>>();
            match unboxed {
                Ok(settlements) => self.settler.settle(settlements).await,
                Err(error) => vec![Err(error)],
            }
        })
    }

    fn extend(&self, receipts: Vec<BoxReceipt>) -> BoxFuture<'_, Vec<Result<(), Error>>> {
        Box::pin(async move {
            match receipts.iter().map(unbox).collect::<Result<Vec<_>, Error>>() {
                Ok(receipts) => self.settler.extend(receipts).await,
                Err(error) => vec![Err(error)],
            }
        })
    }

    fn holds(&self, receipt: &BoxReceipt) -> bool {
        unbox(receipt).is_ok_and(|receipt| self.settler.holds(&receipt))
    }
}

impl BoxSource {
    /// Erases a source's type.
    pub fn new<S: Source>(source: S) -> Self {
        Self(Box::new(Erase(source)))
    }
}

impl fmt::Debug for BoxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoxSource").field(&self.0.name()).finish()
    }
}

impl Source for BoxSource {
    type Receipt = BoxReceipt;
    type Settler = BoxSettler;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn settler(&self) -> BoxSettler {
        self.0.settler()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        self.0.prepare(in_flight).await
    }

    async fn check(&mut self) -> Result<(), Error> {
        self.0.check().await
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<BoxReceipt>, Error> {
        self.0.next(max).await
    }

    fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

impl Settler<BoxReceipt> for BoxSettler {
    async fn settle(&self, settlements: Vec<Settlement<BoxReceipt>>) -> Vec<Result<(), Error>> {
        self.0.settle(settlements).await
    }

    async fn extend(&self, receipts: Vec<BoxReceipt>) -> Vec<Result<(), Error>> {
        self.0.extend(receipts).await
    }

    fn holds(&self, receipt: &BoxReceipt) -> bool {
        self.0.holds(receipt)
    }
}

/// Any publisher, for programs that learn from a configuration which one they use. Clones share it.
#[derive(Clone)]
pub struct BoxPublisher(Arc<dyn ErasedPublisher>);

trait ErasedPublisher: Send + Sync {
    fn publish(&self, messages: Vec<Outgoing>) -> BoxFuture<'_, Vec<Result<(), Error>>>;
}

impl<P: Publisher> ErasedPublisher for P {
    fn publish(&self, messages: Vec<Outgoing>) -> BoxFuture<'_, Vec<Result<(), Error>>> {
        Box::pin(Publisher::publish(self, messages))
    }
}

impl BoxPublisher {
    /// Erases a publisher's type.
    pub fn new(publisher: impl Publisher) -> Self {
        Self(Arc::new(publisher))
    }
}

impl fmt::Debug for BoxPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoxPublisher").finish()
    }
}

impl Publisher for BoxPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        self.0.publish(messages).await
    }
}
