//! The stores that processes contend on, each with servers of its own.

use std::any::Any;

use crate::support::cluster::Cluster;
use crate::support::nodes::Nodes;
use crate::support::redis::RedisServer;

/// A store that runs.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    /// Its servers and files, which end with it.
    _runs: Box<dyn Any>,
}

fn site(name: &'static str, url: String, runs: impl Any) -> Site {
    Site {
        name,
        url,
        _runs: Box::new(runs),
    }
}

/// Starts the stores that are wanted, of those that this program was built with.
pub(crate) async fn start(is_wanted: impl Fn(&str) -> bool) -> Vec<Site> {
    let mut sites = Vec::new();
    if is_wanted("redis") {
        let server = RedisServer::start().await;
        sites.push(site("redis", server.url(), server));
    }
    if is_wanted("redlock") {
        let nodes = Nodes::start(5).await;
        sites.push(site("redlock", nodes.url(), nodes));
    }
    if is_wanted("masters") {
        let cluster = Cluster::of_masters(3).await;
        sites.push(site("masters", cluster.url("?quorum=masters"), cluster));
    }
    #[cfg(feature = "databases")]
    databases::start(&is_wanted, &mut sites).await;
    #[cfg(feature = "etcd")]
    if is_wanted("etcd") {
        use crate::support::etcd::{EtcdServer, etcd_url};
        let server = EtcdServer::start().await;
        sites.push(site("etcd", etcd_url(&[server.port()]), server));
    }
    #[cfg(feature = "zookeeper")]
    if is_wanted("zookeeper") {
        let server = crate::support::zookeeper::Setup::default().start().await;
        let url = format!("zookeeper://127.0.0.1:{}", server.port());
        sites.push(site("zookeeper", url, server));
    }
    #[cfg(feature = "memcached")]
    if is_wanted("memcached") {
        let server = crate::support::memcached::MemcachedServer::start().await;
        sites.push(site("memcached", server.url(), server));
    }
    sites
}

#[cfg(feature = "databases")]
mod databases {
    use dlock::{Config, LockManager};

    use super::{Site, site};
    use crate::databases::server::{Kind, Server};
    use crate::mysql::MariaDb;
    use crate::postgres::PostgreSql;
    use crate::support::dir::TempDir;

    pub(super) async fn start(is_wanted: &impl Fn(&str) -> bool, sites: &mut Vec<Site>) {
        if is_wanted("postgres") {
            sites.push(served::<PostgreSql>("postgres").await);
        }
        if is_wanted("mysql") {
            sites.push(served::<MariaDb>("mysql").await);
        }
        if is_wanted("sqlite") {
            let folder = TempDir::default();
            let url = format!("sqlite:{}", folder.path().join("locks.db").display());
            create_tables(&url).await;
            sites.push(site("sqlite", url, folder));
        }
    }

    async fn served<D: Kind>(name: &'static str) -> Site {
        let server = Server::<D>::start(D::FAST).await;
        let url = server.url(D::OWN, server.port());
        create_tables(&format!("{url}?create_tables=true")).await;
        site(name, url, server)
    }

    /// So that processes that start at once need not.
    async fn create_tables(url: &str) {
        let config = Config::from_url(url).expect("a valid URL");
        let manager = LockManager::connect(config).await.expect("a connection");
        manager.shutdown().await;
    }
}
