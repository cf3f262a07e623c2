//! The rig's end of the sink: starts the process and tells it what to do.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use reqwest::Client;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::Mode;

/// How long the process may take to start, to end, or to hear.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running sink. It ends with this, and with this process however that ends.
pub struct Handle {
    _child: Child,
    address: SocketAddr,
    control: String,
    client: Client,
}

impl Handle {
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program has no path")?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--"])
            .arg(program)
            .arg("sink")
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the sink")?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = timeout(PATIENCE, lines.next_line()).await.context("the sink does not start")??;
        let said = said.context("the sink ended at once")?;
        let mut words = said.split(' ');
        let (Some("ready"), Some(wakes), Some(control)) = (words.next(), words.next(), words.next()) else {
            bail!("the sink said {said:?}");
        };
        let address = wakes.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let address = address.and_then(|text| text.parse().ok()).with_context(|| format!("no address: {wakes}"))?;
        let client = Client::builder().no_proxy().build()?;
        Ok(Self { _child: child, address, control: control.to_owned(), client })
    }

    /// Where wakes go; the path is `/internal/wake/{incarnation}`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From the next wake on.
    pub async fn behave(&self, mode: Mode) -> anyhow::Result<()> {
        let body = serde_json::to_string(&mode)?;
        self.tell("behave", body, Some(PATIENCE)).await
    }

    /// Waits for the next wake of that incarnation. It is logged when this returns, and its answer is held back 300 ms. Whoever
    /// waits no longer drops this.
    pub async fn catch(&self, incarnation: &str) -> anyhow::Result<()> {
        self.tell(&format!("catch/{incarnation}"), String::new(), None).await
    }

    async fn tell(&self, path: &str, body: String, patience: Option<Duration>) -> anyhow::Result<()> {
        let mut request = self.client.post(format!("{}/{path}", self.control)).body(body);
        if let Some(patience) = patience {
            request = request.timeout(patience);
        }
        request.send().await.context("the sink does not listen")?.error_for_status()?;
        Ok(())
    }
}
