//! The record of calls.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    CallRecords, CallRequest, CallRow, CallState, ConsumerName, Fence, MessageId, Timestamp, micros,
};

use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::value::{Value, values};

impl<D: Dialect> CallRecords for SqlStore<D> {
    async fn begin_call(&self, call: &CallRequest<'_>) -> Result<CallState> {
        let mut held = self.connections().side_writer().await?;
        let state = self.call_state(&mut held, call).await;
        held.answer(state).map_err(failed::<D>("cannot record a call"))
    }

    async fn renew_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<bool> {
        self.change_call(&self.sql().renew_call, call, fence, micros(call.lease)).await
    }

    async fn end_call(&self, call: &CallRequest<'_>, fence: Fence, result: &[u8]) -> Result<bool> {
        self.change_call(&self.sql().end_call, call, fence, Some(result)).await
    }

    async fn release_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<()> {
        self.change_call(&self.sql().renew_call, call, fence, 0_i64).await.map(drop)
    }

    async fn calls(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Vec<CallRow>> {
        let cannot = failed::<D>("cannot read the calls of a message");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().calls, values![consumer.as_str(), id.as_str()]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.iter().map(call_row::<D>).collect::<Result<_, _>>().map_err(cannot)
    }
}

impl<D: Dialect> SqlStore<D> {
    async fn call_state(&self, held: &mut Held<D>, call: &CallRequest<'_>) -> Result<CallState, sqlx::Error> {
        let mut bound = of_call(call);
        bound.extend(values![Some(call.request), micros(call.lease), micros(call.key_valid_for)]);
        bound.push(call.idempotency_key().into());
        let begun = held.fetch(&self.sql().begin_call, bound).await?;
        if let Some(row) = begun.first() {
            let fence = int::<D>(row, 0)?;
            let key = text::<D>(row, 1)?;
            return Ok(CallState::Ours { fence: Fence(fence), begun_before: fence > 0, key });
        }
        let rows = held.fetch(&self.sql().call, of_call(call)).await?;
        let Some(row) = rows.first() else { return Ok(CallState::Running { ends_in: Duration::ZERO }) };
        if D::bytes(row, 0)? != call.request {
            return Ok(CallState::OtherRequest);
        }
        if let Some(result) = D::maybe_bytes(row, 1)? {
            return Ok(CallState::Finished(Bytes::from(result)));
        }
        match (u64::try_from(int::<D>(row, 2)?), int::<D>(row, 3)?) {
            (Ok(left @ 1..), _) => Ok(CallState::Running { ends_in: Duration::from_micros(left) }),
            (_, ..=0) => Ok(CallState::Expired),
            _ => Ok(CallState::Running { ends_in: Duration::ZERO }), // it ended between the two statements
        }
    }

    async fn change_call(
        &self,
        sql: &D::Sql,
        call: &CallRequest<'_>,
        fence: Fence,
        change: impl Into<Value>,
    ) -> Result<bool> {
        let mut bound = of_call(call);
        bound.extend([fence.0.into(), change.into()]);
        let mut held = self.connections().side_writer().await?;
        let answer = held.execute(sql, bound).await;
        let changed = held.answer(answer).map_err(failed::<D>("cannot record a call"))?;
        Ok(changed == 1)
    }
}

fn of_call(call: &CallRequest<'_>) -> Vec<Value> {
    values![call.consumer.as_str(), call.id.as_str(), call.label]
}

fn call_row<D: Dialect>(row: &D::Row) -> Result<CallRow, sqlx::Error> {
    let maybe_time = |column| Ok::<_, sqlx::Error>(D::int(row, column)?.map(Timestamp::from_micros));
    Ok(CallRow {
        label: text::<D>(row, 0)?,
        key: text::<D>(row, 7)?,
        request: D::bytes(row, 1)?.into(),
        result: D::maybe_bytes(row, 2)?.map(Bytes::from),
        started_at: Timestamp::from_micros(int::<D>(row, 3)?),
        finished_at: maybe_time(4)?,
        lease_until: maybe_time(5)?,
        key_valid_until: Timestamp::from_micros(int::<D>(row, 6)?),
    })
}
