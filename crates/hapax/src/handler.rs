//! Handlers: what a user registers, and its one erased form.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use hapax_core::{BoxError, Message, Payload, Prepared, RawMessage, Result, Store};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An async function or closure that handles messages in a store's transaction.
///
/// Implemented for `async fn(&mut Tx, Message<T>) -> hapax::Result` and for async closures with
/// annotated arguments; not to be implemented by hand. For a struct use [`Handler`] and
/// [`Consumer::on_handler`](crate::Consumer::on_handler).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{M}` in a `{Tx}`",
    label = "not a handler",
    note = "a handler is `async fn(tx: &mut {Tx}, message: {M}) -> hapax::Result`; a closure's arguments need their types written out",
    note = "a struct that implements `hapax::Handler` goes to `.on_handler(…)` instead"
)]
pub trait HandlerFn<'a, Tx: 'a, M>: Send {
    /// The future of one call.
    type Future: Future<Output = Result> + Send + 'a;

    /// Handles one message, or one batch of them.
    fn call(self, tx: &'a mut Tx, message: M) -> Self::Future;
}

impl<'a, Tx: 'a, M, F, Fut> HandlerFn<'a, Tx, M> for F
where
    F: FnOnce(&'a mut Tx, M) -> Fut + Send,
    Fut: Future<Output = Result> + Send + 'a,
{
    type Future = Fut;

    fn call(self, tx: &'a mut Tx, message: M) -> Fut {
        self(tx, message)
    }
}

/// A struct that handles messages; one struct may handle several payload types.
pub trait Handler<S: Store, T>: Send + Sync + 'static {
    /// Handles one message in the transaction of its claim. May run again for the same message: what
    /// it does outside the transaction is not undone.
    fn handle(&self, tx: &mut S::Tx, message: Message<T>) -> impl Future<Output = Result> + Send;
}

/// An async function or closure that runs before the transaction begins; see
/// [`Consumer::prepare`](crate::Consumer::prepare). What a closure captures is cloned for each message.
pub trait PrepareFn<T, P>: Send + Sync + 'static {
    /// Prepares one message.
    fn call(&self, message: Message<T>) -> impl Future<Output = Result<P>> + Send;
}

impl<T, P, F, Fut> PrepareFn<T, P> for F
where
    T: Send,
    F: FnOnce(Message<T>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<P>> + Send,
{
    fn call(&self, message: Message<T>) -> impl Future<Output = Result<P>> + Send {
        self.clone()(message)
    }
}

/// What a handler is told of a message besides what the message says itself.
#[derive(Clone)]
pub(crate) struct Circumstances {
    /// Counts from 1.
    pub(crate) attempt: u32,
    /// Somebody else began it, and its lease ended.
    pub(crate) taken_over: bool,
    pub(crate) prepared: Option<Prepared>,
}

/// A decoded `Message<T>` of a type that only its handler knows.
pub(crate) type Input = Box<dyn Any + Send>;

/// A handler whose payload type is erased.
pub(crate) trait ErasedHandler<S: Store>: Send + Sync {
    /// Whether a whole run of messages goes into one call.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Reads the payload.
    fn decode(&self, raw: &RawMessage, circumstances: Circumstances) -> Result<Input, BoxError>;

    /// Handles inputs that this handler decoded: one, or any number if it takes batches.
    fn call<'a>(&'a self, tx: &'a mut S::Tx, inputs: Vec<Input>) -> BoxFuture<'a, Result>;
}

/// A prepare step whose types are erased.
pub(crate) trait ErasedPrepare: Send + Sync {
    /// Runs it; the outer error is a payload that cannot be decoded.
    fn run<'a>(
        &'a self,
        raw: &'a RawMessage,
        circumstances: Circumstances,
    ) -> BoxFuture<'a, Result<Result<Prepared>, BoxError>>;
}

fn decode<T: Payload>(raw: &RawMessage, circumstances: Circumstances) -> Result<Message<T>, BoxError> {
    let Circumstances { attempt, taken_over, prepared } = circumstances;
    Ok(Message::new(raw, T::decode(&raw.payload)?, attempt, prepared).with_taken_over(taken_over))
}

/// The inverse of the boxing in `decode`. An input of another type would be a mix-up inside this
/// crate; it is reported as a failure of the message rather than a panic.
fn unbox<T: 'static>(input: Input) -> Result<Message<T>> {
    match input.downcast::<Message<T>>() {
        Ok(message) => Ok(*message),
        Err(_) => Err("the message was decoded for another handler".into()),
    }
}

pub(crate) struct OnFunction<T, F> {
    function: F,
    payload: PhantomData<fn() -> T>,
}

impl<T, F> OnFunction<T, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, payload: PhantomData }
    }
}

impl<S, T, F> ErasedHandler<S> for OnFunction<T, F>
where
    S: Store,
    T: Payload,
    F: for<'a> HandlerFn<'a, S::Tx, Message<T>> + Clone + Sync + 'static,
{
    fn decode(&self, raw: &RawMessage, circumstances: Circumstances) -> Result<Input, BoxError> {
        Ok(Box::new(decode::<T>(raw, circumstances)?))
    }

    fn call<'a>(&'a self, tx: &'a mut S::Tx, inputs: Vec<Input>) -> BoxFuture<'a, Result> {
        let function = self.function.clone();
        Box::pin(async move {
            match inputs.into_iter().next() {
                Some(input) => function.call(tx, unbox(input)?).await,
                None => Ok(()),
            }
        })
    }
}

pub(crate) struct OnBatch<T, F> {
    function: F,
    payload: PhantomData<fn() -> T>,
}

impl<T, F> OnBatch<T, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, payload: PhantomData }
    }
}

impl<S, T, F> ErasedHandler<S> for OnBatch<T, F>
where
    S: Store,
    T: Payload,
    F: for<'a> HandlerFn<'a, S::Tx, Vec<Message<T>>> + Clone + Sync + 'static,
{
    fn takes_batches(&self) -> bool {
        true
    }

    fn decode(&self, raw: &RawMessage, circumstances: Circumstances) -> Result<Input, BoxError> {
        Ok(Box::new(decode::<T>(raw, circumstances)?))
    }

    fn call<'a>(&'a self, tx: &'a mut S::Tx, inputs: Vec<Input>) -> BoxFuture<'a, Result> {
        let function = self.function.clone();
        Box::pin(async move {
            let messages = inputs.into_iter().map(unbox).collect::<Result<Vec<Message<T>>>>()?;
            function.call(tx, messages).await
        })
    }
}

pub(crate) struct OnHandler<T, H> {
    handler: H,
    payload: PhantomData<fn() -> T>,
}

impl<T, H> OnHandler<T, H> {
    pub(crate) fn new(handler: H) -> Self {
        Self { handler, payload: PhantomData }
    }
}

impl<S: Store, T: Payload, H: Handler<S, T>> ErasedHandler<S> for OnHandler<T, H> {
    fn decode(&self, raw: &RawMessage, circumstances: Circumstances) -> Result<Input, BoxError> {
        Ok(Box::new(decode::<T>(raw, circumstances)?))
    }

    fn call<'a>(&'a self, tx: &'a mut S::Tx, inputs: Vec<Input>) -> BoxFuture<'a, Result> {
        Box::pin(async move {
            for input in inputs {
                self.handler.handle(tx, unbox(input)?).await?;
            }
            Ok(())
        })
    }
}

pub(crate) struct Prepare<T, P, F> {
    function: F,
    types: PhantomData<fn(T) -> P>,
}

impl<T, P, F> Prepare<T, P, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<T, P, F> ErasedPrepare for Prepare<T, P, F>
where
    T: Payload,
    P: Any + Send + Sync,
    F: PrepareFn<T, P>,
{
    fn run<'a>(
        &'a self,
        raw: &'a RawMessage,
        circumstances: Circumstances,
    ) -> BoxFuture<'a, Result<Result<Prepared>, BoxError>> {
        Box::pin(async move {
            let message = decode::<T>(raw, circumstances)?;
            Ok(self.function.call(message).await.map(|prepared| std::sync::Arc::new(prepared) as Prepared))
        })
    }
}
