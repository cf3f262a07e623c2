//! How a trace speaks of things.

use chronos::domain::ids::WorkerId;

use super::super::{
    dispatcher::told,
    table::{MS, Statement},
};

pub fn name(slot: usize, worker: WorkerId) -> String {
    format!("d{}/{}", slot + 1, worker.as_uuid().as_u128())
}

pub fn words(statement: &Statement) -> String {
    let alarms = |alarms: Vec<usize>| format!("{alarms:?}");
    match statement {
        Statement::Look { beat, rows, .. } => format!("look for {rows}{}", if *beat { ", beat" } else { "" }),
        Statement::Fold(folds) => {
            let runs = folds.iter().flat_map(|fold| fold.passed.iter().map(told));
            format!(
                "fold {} ({})",
                alarms(folds.iter().map(|fold| fold.claim.alarm).collect()),
                runs.collect::<Vec<_>>().join("; ")
            )
        }
        Statement::GiveBack(claims) => {
            format!("give back {}", alarms(claims.iter().map(|claim| claim.alarm).collect()))
        }
        Statement::ReleaseDead(dead) => format!("release claims of {}", dead.worker.as_uuid().as_u128()),
        Statement::ReleaseLost { .. } => "release what was lost".to_owned(),
        Statement::Settle(batch) => {
            let results = batch.iter().map(|(claim, settlement)| {
                let passed = settlement.passed.as_ref().map(told).unwrap_or_default();
                let next = settlement
                    .over
                    .map_or_else(|| (settlement.next_fire_at / MS).to_string(), |over| over.as_str().to_owned());
                format!(
                    "alarm {} for {} {} then {next} {passed}",
                    claim.alarm,
                    claim.scheduled_for / MS,
                    settlement.outcome.as_str()
                )
            });
            format!("settle ({})", results.collect::<Vec<_>>().join("; "))
        }
        Statement::SignOff(_) => "sign off".to_owned(),
        Statement::RecordLost(batch) => {
            format!("record lost {}", alarms(batch.iter().map(|(claim, _)| claim.alarm).collect()))
        }
    }
}
