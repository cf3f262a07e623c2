//! `docs/guides/gitops.md`: what it shows is applied to a real API server, where a real controller looks at it.

use std::{collections::HashMap, path::Path};

use super::{
    page::{Block, Page, Role},
    terminal::Folder,
};
use crate::support::{Namespace, World};

#[tokio::test]
async fn who_follows_the_gitops_guide_sees_what_it_shows() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let kubeconfig = namespace.kubeconfig_here();
    let path = kubeconfig.path.to_str().unwrap();
    let settings = [
        ("KUBECONFIG", path),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
    ];
    let _chronosd = world.chronosd_with("controller,dispatch", &settings).await;
    let folder = Folder::new();
    // The test bed's, whatever else the machine has.
    let assets = std::env::var("KUBEBUILDER_ASSETS").expect("make sets it");
    folder.install(&Path::new(&assets).join("kubectl"));
    let mut terminal = folder.terminal(&HashMap::from([("KUBECONFIG".to_owned(), path.to_owned())])).await;

    let mut printed = String::new();
    for block in Page::read("gitops.md").blocks {
        eprintln!("{}: {:?}", block.place, block.role);
        match &block.role {
            Role::Applied => {
                folder.save("applied.yaml", &block.text);
                terminal.run("kubectl apply --validate=strict -f applied.yaml").await;
            }
            Role::Run => printed = terminal.run(&block.text).await,
            Role::Output => block.assert_shows(&printed),
            Role::NotRun => {}
            Role::Serve(_) | Role::Set | Role::Program(_) | Role::Wake | Role::Woken => unused(&block),
            Role::Alarm | Role::Headers | Role::Body => unused(&block),
        }
    }
    // The alarm's next slot may be days away: this is the one that the guide asked for.
    let wake = world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["message"], "Generate the daily portfolio summary: check balances and open orders.");
}

fn unused(block: &Block) {
    panic!("{}: a block {:?} has no place in this guide", block.place, block.role);
}
