//! Faults of Postgres and of the control plane.

use std::time::Duration;

use tokio::time::sleep;

use super::{Nemesis, plan::Strike};
use crate::{log::Kind, world::shell::now};

/// Whom nobody elected.
const IMPOSTER: &str = "imposter";

impl Nemesis {
    pub(super) async fn postgres_stop(&self, strike: &Strike) -> anyhow::Result<bool> {
        let postgres = &self.world.postgres;
        let record = self.plan(strike.kind, None);
        if strike.kind == Kind::PostgresKill {
            postgres.kill().await?;
        } else {
            postgres.stop().await?;
        }
        record.struck(format!("for {:?}", strike.length));
        sleep(strike.length).await;
        postgres.start_again().await?;
        record.over();
        Ok(true)
    }

    pub(super) async fn postgres_freeze(&self, strike: &Strike) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        self.world.postgres.freeze().await?;
        record.struck(format!("for {:?}", strike.length));
        sleep(strike.length).await;
        self.world.postgres.thaw().await;
        record.over();
        Ok(true)
    }

    pub(super) async fn backends_terminated(&self, strike: &Strike) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        let ended = self.world.postgres.terminate_backends().await?;
        if ended > 0 {
            record.struck(format!("{ended} of them"));
        }
        record.over();
        Ok(ended > 0)
    }

    pub(super) async fn disk_full(&self, strike: &Strike) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        // Whatever comes of it, others may have found the disk full meanwhile.
        let filled = match self.world.postgres.fill_disk().await {
            Ok(why) => {
                record.struck(format!("for {:?}: {why}", strike.length));
                sleep(strike.length).await;
                true
            }
            Err(error) => {
                record.struck(format!("in part: {error:#}"));
                false
            }
        };
        self.world.postgres.clear_disk().await?;
        record.over();
        Ok(filled)
    }

    pub(super) async fn failover(&self, strike: &Strike) -> anyhow::Result<bool> {
        let postgres = &self.world.postgres;
        let record = self.plan(strike.kind, None);
        let lost = if strike.kind == Kind::FailoverSync {
            postgres.fail_over().await?;
            None
        } else {
            Some(postgres.fail_over_with_loss().await?)
        };
        self.world.retarget().await;
        let detail = lost.map(|(_, bytes)| format!("{bytes} bytes of the log lost"));
        record.struck_and_undoes(lost.map(|(from, _)| from), detail.unwrap_or_default());
        record.over();
        // Nobody waits for it but the next fault of Postgres.
        postgres.rebuild_standby().await?;
        Ok(true)
    }

    pub(super) async fn controlplane_kill(&self, strike: &Strike) -> anyhow::Result<bool> {
        let part = if strike.kind == Kind::EtcdKill { "etcd" } else { "apiserver" };
        let record = self.plan(strike.kind, None);
        self.world.cluster.tell(&format!("kill {part}"), "killed").await?;
        record.struck(format!("for {:?}", strike.length));
        sleep(strike.length).await;
        self.world.cluster.tell(&format!("start {part}"), "ready").await?;
        self.world.cluster.serves().await?;
        record.over();
        Ok(true)
    }

    pub(super) async fn controlplane_freeze(&self, strike: &Strike) -> anyhow::Result<bool> {
        let part = if strike.kind == Kind::EtcdFreeze { "etcd" } else { "apiserver" };
        let record = self.plan(strike.kind, None);
        self.world.cluster.tell(&format!("freeze {part}"), "frozen").await?;
        record.struck(format!("for {:?}", strike.length));
        sleep(strike.length).await;
        self.world.cluster.tell(&format!("thaw {part}"), "thawed").await?;
        self.world.cluster.serves().await?;
        record.over();
        Ok(true)
    }

    /// The API server remembers some history of its own; started anew it has only what etcd remembers, and a watch from before is
    /// told 410.
    pub(super) async fn etcd_compact(&self, strike: &Strike) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        self.world.cluster.tell("compact", "compacted").await?;
        record.struck("");
        if self.world.setup.kinds.contains(&Kind::ApiserverKill) {
            self.world.cluster.tell("kill apiserver", "killed").await?;
            self.world.cluster.tell("start apiserver", "ready").await?;
            self.world.cluster.serves().await?;
        } else {
            sleep(Duration::from_millis(200)).await;
        }
        record.over();
        Ok(true)
    }

    pub(super) async fn etcd_restore(&self, strike: &Strike) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        let undoes_from = now();
        self.world.cluster.tell("snapshot before", "saved").await?;
        sleep(strike.length).await;
        self.world.cluster.tell("restore before", "ready").await?;
        record.struck_and_undoes(Some(undoes_from), format!("to {:?} before", strike.length));
        self.world.cluster.serves().await?;
        record.over();
        Ok(true)
    }

    pub(super) async fn lease_stolen(&self, strike: &Strike) -> anyhow::Result<bool> {
        let leads = self.world.setup.mode == "leader" && strike.dice.is_multiple_of(2);
        let lease = if leads { "chronos-dispatch" } else { "chronos-controller" };
        let record = self.plan(strike.kind, Some(lease.to_owned()));
        let stolen = self.world.cluster.hold_lease(lease, Some(IMPOSTER)).await?;
        if stolen {
            record.struck(format!("for {:?}", strike.length));
            sleep(strike.length).await;
            self.world.cluster.hold_lease(lease, None).await?;
        }
        record.over();
        Ok(stolen)
    }
}
