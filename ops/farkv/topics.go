package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/consul"
)

// topics are what 'farkv help' explains besides the commands.
func topics() []*cobra.Command {
	topic := func(name, short, long string) *cobra.Command {
		return &cobra.Command{Use: name, Short: short, Long: strings.TrimSpace(long)}
	}
	return []*cobra.Command{
		topic("tcp", "Pools over a network: addresses, tokens, TLS, leases", tcpHelp),
		topic("rdma", "Pools over RNICs: devices, addresses, memory, what is measured", rdmaHelp),
		topic("consul", "Pools that are found through Consul", consulHelp),
	}
}

const tcpHelp = `
NAME
  tcp - pools whose memory nodes are processes, reached over TCP

ADDRESSES
  tcp:HOST:PORT,HOST:PORT,...   the pool on these memory nodes, in the order in which it was made
  consul:HOST:PORT/POOL         the same, looked up in Consul: see 'farkv help consul'
  NAME                          nodes that 'farkv up --fabric tcp NAME' started on this machine
                                (of rdma: addresses 'farkv help rdma' tells)

  Every command takes them, and so does go-ycsb: -p farkv.pool=tcp:...

BEGINNING
  On one machine, to try it:

    farkv up --fabric tcp mine --nodes 3
    farkv put mine paper FUSEE && farkv get mine paper
    farkv status mine && farkv crash mine node 1
    farkv down mine

  On several, a node on each, and then the pool on all of them:

    farkv node --memory 8GiB --listen 10.0.0.5:7070 --token-file /etc/farkv/token
    export FARKV_TOKEN_FILE=/etc/farkv/token
    farkv up tcp:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070 --memory 8GiB

  ops/systemd holds units for nodes and keepers.

TOKENS
  A token is the content of a file, but for the white space around it: 16 bytes at least, the same on all nodes of a pool and
  with all its clients. Nobody but its owner may read the file:

    (umask 077; openssl rand -hex 32 > /etc/farkv/token)

  It is never sent: each end proves to know it. Without one a node listens on the loopback only. Nodes take the file as
  --token-file, clients from the environment. Who knows only the token of a node's --read-token-file may read and nothing else.
  Readers have half of a node's --connections at most; one that takes no answers is disconnected within a second. 16 more
  connections are for the farkv command with the full token, so that 'farkv status' and 'farkv down' find room on a full node.

VERSIONS
  Both ends of a connection name their versions of the protocol. Where these differ, both say so, and do not talk: use the
  same farkv on all nodes and clients of a pool.

  'farkv up --fabric tcp NAME', or rdma, makes a token for the nodes that it starts, unless FARKV_TOKEN_FILE names one. It is in
  the pool's run folder, and the same user's programs find it there by NAME, or by the nodes' addresses.

ENVIRONMENT
  FARKV_TOKEN_FILE        the token
  FARKV_READ_TOKEN_FILE   the one with which nothing but reading is possible, instead
  FARKV_TLS_CA            the authority of nodes' certificates; set, clients speak TLS
  FARKV_TLS_CERT          the client's own certificate, for nodes that have --tls-ca
  FARKV_TLS_KEY           and its key

TLS
  A token keeps strangers out; what is stored is readable, and can be changed, on its way. With --tls-cert and --tls-key a
  node speaks TLS 1.3 and nothing else. Its certificate has to name the host, or have the IP address, that clients use. Nodes
  that are partners of a pool are each other's clients, too, so that with --tls-ca their certificates must come from it.
  Without, a private authority's own certificate has to stand behind the node's in the file of --tls-cert.
  Certificates are read when a process starts. A key that others can read is refused, as such a token is.

LEASES
  A node executes verbs only while it holds leases of a majority of the pool's nodes, itself included. They last for 300 ms,
  and it asks for them five times as often. So a node that is cut off from the others, or stood still, answers nobody, and
  the pool's master may replace it without asking it. A lease that ran out holds verbs back until there is one again.
  'farkv status' shows what is left of each; a pause of the process, or a clock that is set, does no harm.

WHAT SURVIVES WHAT
  a client dies             everything: others finish or take back what it was about
  the master dies           everything: another process is elected within a lease
  a memory node dies        everything that has another replica, while a majority of the nodes lives: one of 3 may die, two
                            of 5; a pool of 1 or 2 nodes survives none. Spares count as nodes, and so do witnesses, which
                            hold nothing; of more than seven the first seven count
  a majority dies           nothing: nobody can tell any more what was agreed on. Make the pool anew
  a node is restarted       it comes back empty, as another one, and takes no part in the pool
  the network is cut        the side with the majority goes on; the other one waits

SEE ALSO
  farkv help node, farkv help up, farkv help keep, farkv help consul
`

const rdmaHelp = `
NAME
  rdma - pools on memory nodes whose verbs go from RNIC to RNIC

ADDRESSES
  rdma:HOST:PORT,HOST:PORT,...   the pool on these memory nodes; HOST:PORT is where a node listens over TCP
  consul:HOST:PORT/POOL          its record says that it is such a pool: see 'farkv help consul'
  NAME                           nodes that 'farkv up --fabric rdma NAME' started on this machine

  A pool goes over RDMA or over TCP, never over both: a device's atomics are not atomic with a processor's. Who opens it by
  the other fabric's address is told so.

BEGINNING
  This program speaks RDMA when it was built with libibverbs, on Linux:

    apt-get install libibverbs-dev rdma-core gcc
    go build -tags ibverbs ./ops/farkv && go build -tags ibverbs ./workloads/go-ycsb

  On one machine, to try it; soft-RoCE does where there is no RNIC:

    modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0
    farkv doctor --require rdma,memlock
    farkv up --fabric rdma mine --nodes 3
    farkv put mine paper FUSEE && farkv get mine paper
    farkv down mine

  On several, a node on each, and then the pool on all of them:

    farkv node --fabric rdma --memory 8GiB --listen 10.0.0.5:7070 --token-file /etc/farkv/token
    export FARKV_TOKEN_FILE=/etc/farkv/token
    farkv perf rdma:10.0.0.5:7070
    farkv up rdma:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070 --memory 8GiB
    go-ycsb load fusee -P workloada -p farkv.pool=rdma:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070

WHAT GOES OVER WHAT
  Verbs go from a worker's queue pair to the node's, InfiniBand or RoCE v2, and the node's process does not see them. Over TCP
  go the exchange of queue pairs, leases, calls, the view and the master: tokens and TLS are those of 'farkv help tcp', and
  what is said there of leases and of what survives what holds. TLS encrypts no verbs.
  Nodes with a device serve pools over TCP, too.

DEVICE
  The one whose address leads to the pool, else the best that is up, is chosen. To choose another:

    nodes      --device mlx5_0 --port 1 --gid 3
    clients    FARKV_RDMA_DEVICE, FARKV_RDMA_PORT, FARKV_RDMA_GID; nodes take them, too, and flags go before

  --gid is the index of an address of the port, from 0, as 'farkv doctor' and ibv_devinfo -v list them. All machines of a
  pool need addresses that reach each other: of RoCE the same kind (IPv4 or IPv6) in the same network.

MEMORY
  Registered memory is locked: the limit of nodes (--memory) and of clients has to allow it, which 'ulimit -l' tells, and
  LimitMEMLOCK= sets for a unit. A node takes huge pages where enough are free (sysctl vm.nr_hugepages), since its device
  then finds its way through memory faster.

UNITS
  ops/systemd has farkv-node@.service; farkv-node@.service.d/rdma.conf, beside it, lets a node at the devices, and
  MORE=--fabric rdma in /etc/farkv/node-NAME.env has it use them.

WHAT IS MEASURED
  'farkv perf rdma:...' has each verb's latency and rate. Go-ycsb counts beside its results, and in --results, the verbs,
  doorbells, calls into libibverbs, and sleeps of an operation, and packets where the device counts them. Metrics:
  farkv_client_verbs_total by kind, farkv_rdma_* of a process, farkv_node_rdma_device of a node, which counts no such verbs.

SEE ALSO
  farkv help tcp, farkv help doctor, farkv help node, farkv help perf
`

var consulHelp = `
NAME
  consul - pools whose nodes and record are found through a Consul agent

ADDRESSES
  consul:HOST:PORT/POOL   HOST:PORT is that of an agent's HTTP interface, such as 127.0.0.1:8500

BEGINNING
    consul agent -dev &
    farkv node --memory 8GiB --listen 10.0.0.5:7070 --token-file /etc/farkv/token --consul 127.0.0.1:8500
    farkv up consul:127.0.0.1:8500/mine --nodes 3 --memory 8GiB
    farkv status consul:127.0.0.1:8500/mine
    go-ycsb load fusee -P workloada -p farkv.pool=consul:127.0.0.1:8500/mine

  Without --addresses 'farkv up' takes nodes that are registered, are well, and belong to no pool. The pool goes over RDMA
  when all its nodes were started with --fabric rdma, else over TCP; --fabric decides, and then takes nodes that can. Its
  record says which, so that the same address opens it.

WHAT IS THERE
  services    farkv-node, one for each node with --consul, under a check that a node passes every 500 ms and that is
              critical 2 s after its process died or stopped; it goes a minute later
  farkv/POOL  in the key-value store: the pool's record (its nodes, store and parameters, its view, the master, its clients),
              changed by compare-and-set only

ENVIRONMENT
  What Consul's own programs take: CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_SSL, CONSUL_CACERT,
  CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_NAMESPACE ... but for the agent's address, which the pool's has. The
  tokens and certificates of memory nodes are another matter: see 'farkv help tcp'.

ACCESS
  Where Consul has access control, memory nodes and clients take a token with a policy of these rules:

    ` + strings.ReplaceAll(consul.Rules, "\n", "\n    ") + `

  Without node_prefix no node is found, without agent_prefix 'farkv doctor' does not learn the agent's version. To make them:

    consul acl policy create -name farkv -rules "$(farkv help consul | grep '^ *[a-z]*_prefix')"
    consul acl token create -policy-name farkv

WHEN THE AGENT IS AWAY
  Reads and writes go on. Nobody is elected, no dead node is replaced, no client recovered, and no program can open the pool
  until it is back: a master that cannot write to Consul changes nothing. Leases of memory nodes are theirs among each other,
  and need no agent.

  Commands wait for an agent that does not answer, for --wait, and say so on standard error. 'farkv node' and 'farkv keep' do
  so when they start; --wait 0s is not to wait.

SEE ALSO
  farkv help tcp, farkv help node, farkv help up
`
