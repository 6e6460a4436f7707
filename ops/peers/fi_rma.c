// fi_rma measures what one-sided operations cost over libfabric's tcp;ofi_rxm provider, between two processes, in the
// manner of fabtests' fi_rma_bw: a batch of `window` operations is posted, then all of them are waited for.
//
//	fi_rma -s [-a HOST] [-m MODE]                        serves one client; its first line of output is its port
//	fi_rma [-a HOST] [-m MODE] -p PORT [-w N] [-i N] [-r N]
//
// The client prints a line a test, of its median round: name window us_per_op client_cpu_us server_cpu_us, the last
// two user and system time of the whole process an operation. Each round is checked: what the operations returned, and
// after it every byte of the server's memory.
//
// A write completes as soon as its buffer may be used again, as in fi_rma_bw; a write-delivered when its data is in the
// server's memory (FI_DELIVERY_COMPLETE), which is what a read, an atomic or an RDMA NIC's acknowledged write wait for.
//
// MODE is how both ends make progress: spin (polls its queue, the fastest, a core each), wait (sleeps until its queue
// has something), auto (the provider's own thread drives the server, FI_PROGRESS_AUTO; the client spins).
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { BLOCK = 4096, WORDS = BLOCK / 8, WINDOWS = 256, ROUNDS = 99, LIMIT = 60 /* seconds of a round or of silence */ };

// Slot i of a batch works on block i, of the client's memory and of the server's.
typedef uint64_t block[WORDS];

// hello is all that a client learns of a server. Both ends are one program on one kind of machine: it goes as it is.
struct hello {
	uint64_t base, key, address_size;
	char address[128];
};

static enum { SPIN, WAIT, AUTO } mode;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_domain *domain;
static struct fid_fabric *fabric;
static struct fid_mr *mr;
static struct fi_info *info;
static block *memory; // WINDOWS blocks, registered
static struct hello server;
static fi_addr_t peer;
static int control; // the socket by which the client tells the server what to do, beside libfabric
static struct fi_context2 contexts[WINDOWS];

static void must(const char *what, ssize_t rc) { // as libfabric returns it
	if (rc < 0) errx(1, "%s: %s", what, fi_strerror((int)-rc));
}

static void need(const char *what, ssize_t rc) { // as the system returns it
	if (rc < 0) err(1, "%s", what);
}

static uint64_t nanoseconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t cpu(void) { // nanoseconds, of every thread
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

enum { CLIENT_SIDE = 1, SERVER_SIDE = 2 };
// pattern is what both ends expect in a word (splitmix64); sides differ, so that data that did not arrive shows.
static uint64_t pattern(uint64_t side, size_t slot, size_t word) {
	uint64_t z = (side << 32 | (slot * WORDS + word)) * 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void fill(block *b, uint64_t side) {
	for (size_t s = 0; s < WINDOWS; s++)
		for (size_t w = 0; w < WORDS; w++) b[s][w] = pattern(side, s, w);
}

static void sendall(const void *p, size_t n) { // blocks until all is sent: no signal is handled
	if (send(control, p, n, MSG_NOSIGNAL) != (ssize_t)n) err(1, "send to the other process");
}

static void receive(void *p, size_t n) {
	if (recv(control, p, n, MSG_WAITALL) != (ssize_t)n) errx(1, "the other process has gone");
}

// Endpoints.

static struct fi_info *hints(void) {
	struct fi_info *h = fi_allocinfo();
	if (!h) errx(1, "no memory");
	h->ep_attr->type = FI_EP_RDM;
	h->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	h->domain_attr->data_progress = mode == AUTO ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	h->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
	return h;
}

// endpoint opens one at host (FI_SOURCE) or one that reaches it (0), and registers its memory.
static void endpoint(const char *host, uint64_t flags) {
	struct fi_info *h = hints();
	must("find tcp;ofi_rxm", fi_getinfo(FI_VERSION(1, 17), host, NULL, flags, h, &info));
	fi_freeinfo(h);
	must("open the fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("open the domain", fi_domain(fabric, info, &domain, NULL));
	struct fi_cq_attr cqa = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = mode == WAIT ? FI_WAIT_FD : FI_WAIT_NONE};
	struct fi_av_attr ava = {.type = FI_AV_TABLE};
	must("open a completion queue", fi_cq_open(domain, &cqa, &cq, NULL));
	must("open an address vector", fi_av_open(domain, &ava, &av, NULL));
	must("open an endpoint", fi_endpoint(domain, info, &ep, NULL));
	must("bind the queue", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	must("bind the addresses", fi_ep_bind(ep, &av->fid, 0));
	must("enable the endpoint", fi_enable(ep));
	if (!(memory = aligned_alloc(BLOCK, WINDOWS * sizeof *memory))) errx(1, "no memory");
	uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	must("register memory", fi_mr_reg(domain, memory, WINDOWS * sizeof *memory, access, 0, 1, 0, &mr, NULL));
	fill(memory, CLIENT_SIDE);
}

// progress reads completions, at most n, and returns how many there were. With sleep it waits for the first.
static size_t progress(size_t n, bool sleep) {
	struct fi_cq_entry done[WINDOWS];
	ssize_t k = sleep ? fi_cq_sread(cq, done, n, NULL, 1000) : fi_cq_read(cq, done, n);
	if (k >= 0) return (size_t)k;
	if (k == -FI_EAVAIL) {
		struct fi_cq_err_entry e = {0};
		must("read an error", fi_cq_readerr(cq, &e, 0));
		errx(1, "an operation failed: %s", fi_strerror(e.err));
	}
	if (k != -FI_EAGAIN && k != -FI_EINTR) must("read completions", k);
	return 0;
}

// The server.

// asked lets the provider work until the client asks for something, and returns what; 'q' if it has gone.
static char asked(void) {
	int fd = -1;
	struct fid *queue = &cq->fid;
	if (mode == WAIT) must("get the queue's descriptor", fi_control(queue, FI_GETWAIT, &fd));
	for (unsigned turn = 0;; turn++) {
		char c = 'q';
		if (mode == WAIT) {
			progress(1, false);
			// The provider says whether it may be slept for, else an event before the poll would be missed.
			struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = control, .events = POLLIN}};
			if (fi_trywait(fabric, &queue, 1) != FI_SUCCESS) continue;
			if (poll(fds, 2, -1) < 0 && errno != EINTR) need("poll", -1);
			if (!fds[1].revents) continue;
		} else if (mode == SPIN) {
			progress(1, false);
			if (turn % 256) continue; // asking the socket costs about as much as the provider's own poll
		}
		ssize_t k = recv(control, &c, 1, mode == SPIN ? MSG_DONTWAIT : 0);
		if (k < 0 && errno == EAGAIN) continue;
		need("receive from the client", k);
		return k == 0 ? 'q' : c;
	}
}

static void serve(const char *host) {
	struct sockaddr_in a = {.sin_family = AF_INET};
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1) errx(1, "%s is no IPv4 address", host);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	need("socket", listener);
	need("bind", bind(listener, (struct sockaddr *)&a, sizeof a));
	need("listen", listen(listener, 1));
	need("getsockname", getsockname(listener, (struct sockaddr *)&a, &(socklen_t){sizeof a}));
	endpoint(host, FI_SOURCE);
	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	alarm(LIMIT);
	need("accept", control = accept(listener, NULL, NULL));
	close(listener);

	size_t n = sizeof server.address;
	must("get the address", fi_getname(&ep->fid, server.address, &n));
	server.address_size = n;
	server.key = fi_mr_key(mr);
	server.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)memory : 0;
	sendall(&server, sizeof server);
	for (char c; (c = asked()) != 'q';) {
		alarm(LIMIT);
		uint64_t used = cpu();
		switch (c) {
		case 'f': fill(memory, SERVER_SIDE); __attribute__((fallthrough)); // the answer says that it is done
		case 'u': sendall(&used, sizeof used); break;
		case 'd': sendall(memory, WINDOWS * sizeof *memory); break;
		default: errx(1, "the client asks for %d", c);
		}
	}
}

// The client.

static uint64_t ask(char what) {
	uint64_t v;
	sendall(&what, 1);
	receive(&v, sizeof v);
	return v;
}

static uint64_t remote(size_t slot) { return server.base + slot * BLOCK; }

// In its turn a slot's operation is given to the provider (post); check tells whether it returned the right thing, and
// leave changes the server's pattern into what a round of so many turns leaves there. Those that complete before they
// are done are flushed by a read, which follows them on the one connection, before a round's end.
struct test {
	const char *name;
	ssize_t (*post)(size_t slot, uint64_t turn);
	bool (*check)(size_t slot, uint64_t turn);
	void (*leave)(block want, size_t slot, uint64_t turns);
	bool flush;
};

static ssize_t post_write(size_t slot, uint64_t turn, uint64_t flags) {
	memory[slot][0] = memory[slot][WORDS - 1] = turn;
	struct iovec from = {memory[slot], BLOCK};
	struct fi_rma_iov to = {remote(slot), BLOCK, server.key};
	void *desc = fi_mr_desc(mr);
	struct fi_msg_rma m = {.msg_iov = &from, .desc = &desc, .iov_count = 1, .addr = peer, .rma_iov = &to,
			       .rma_iov_count = 1, .context = &contexts[slot]};
	return fi_writemsg(ep, &m, FI_COMPLETION | flags);
}

static ssize_t write_post(size_t slot, uint64_t turn) { return post_write(slot, turn, 0); }
static ssize_t delivered_post(size_t slot, uint64_t turn) { return post_write(slot, turn, FI_DELIVERY_COMPLETE); }

static void write_leave(block want, size_t slot, uint64_t turns) {
	for (size_t w = 0; w < WORDS; w++) want[w] = pattern(CLIENT_SIDE, slot, w);
	want[0] = want[WORDS - 1] = turns - 1;
}

static ssize_t read_post(size_t slot, uint64_t turn) {
	memory[slot][0] = memory[slot][WORDS - 1] = 0;
	return fi_read(ep, memory[slot], BLOCK, fi_mr_desc(mr), peer, remote(slot), server.key, &contexts[slot]);
}

// read_check looks at both ends of every block, and through the whole of it now and then: that takes time.
static bool read_check(size_t slot, uint64_t turn) {
	for (size_t w = 0; w < WORDS; w += turn % 1024 ? WORDS - 1 : 1)
		if (memory[slot][w] != pattern(SERVER_SIDE, slot, w)) return false;
	return true;
}

// Of a slot's block at the client, the words of an atomic: its result, its operand and what it compares with.
enum { RESULT, OPERAND, COMPARE };

static ssize_t add_post(size_t slot, uint64_t turn) {
	uint64_t *b = memory[slot];
	void *desc = fi_mr_desc(mr);
	b[OPERAND] = 1;
	return fi_fetch_atomic(ep, &b[OPERAND], 1, desc, &b[RESULT], desc, peer, remote(slot), server.key, FI_UINT64,
			       FI_SUM, &contexts[slot]);
}

static ssize_t swap_post(size_t slot, uint64_t turn) {
	uint64_t *b = memory[slot];
	void *desc = fi_mr_desc(mr);
	b[COMPARE] = pattern(SERVER_SIDE, slot, 0) + turn;
	b[OPERAND] = b[COMPARE] + 1;
	return fi_compare_atomic(ep, &b[OPERAND], 1, desc, &b[COMPARE], desc, &b[RESULT], desc, peer, remote(slot),
				 server.key, FI_UINT64, FI_CSWAP, &contexts[slot]);
}

static bool atomic_check(size_t slot, uint64_t turn) {
	return memory[slot][RESULT] == pattern(SERVER_SIDE, slot, 0) + turn;
}

static void atomic_leave(block want, size_t slot, uint64_t turns) { want[0] += turns; }

static const struct test tests[] = {
	{"write", write_post, NULL, write_leave, true},
	{"write-delivered", delivered_post, NULL, write_leave, false},
	{"read", read_post, read_check, NULL, false},
	{"fetch-add", add_post, atomic_check, atomic_leave, false},
	{"compare-swap", swap_post, atomic_check, atomic_leave, false},
};
static const struct test flush = {"flush", read_post, NULL, NULL, false};

// batch posts the turn's operation on every slot and waits for all of them.
static void batch(const struct test *t, size_t window, uint64_t turn) {
	size_t done = 0;
	for (size_t s = 0; s < window; s++) {
		ssize_t rc;
		while ((rc = t->post(s, turn)) == -FI_EAGAIN) done += progress(window, false);
		must(t->name, rc);
	}
	while (done < window) done += progress(window, mode == WAIT);
	for (size_t s = 0; s < window; s++)
		if (t->check && !t->check(s, turn)) errx(1, "%s %zu: wrong result in slot %zu, turn %lu", t->name, window, s, turn);
}

// compare looks for a difference between the server's memory and what the round must have left there.
static void compare(const struct test *t, size_t window, uint64_t turns) {
	block *want = calloc(2 * WINDOWS, sizeof *want), *got = want + WINDOWS;
	if (!want) errx(1, "no memory");
	fill(want, SERVER_SIDE);
	for (size_t s = 0; t->leave && s < window; s++) t->leave(want[s], s, turns);
	sendall("d", 1);
	receive(got, WINDOWS * sizeof *got);
	if (memcmp(want, got, WINDOWS * sizeof *got)) errx(1, "%s %zu: wrong data at the server", t->name, window);
	free(want);
}

struct cost { double wall, client, server; }; // microseconds an operation

static struct cost measured(const struct test *t, size_t window, uint64_t turns) {
	alarm(LIMIT);
	ask('f');
	fill(memory, CLIENT_SIDE);
	double n = (double)turns * (double)window * 1000;
	uint64_t theirs = ask('u'), own = cpu(), began = nanoseconds();
	for (uint64_t turn = 0; turn < turns; turn++) batch(t, window, turn);
	if (t->flush) batch(&flush, 1, 0);
	struct cost c = {.wall = (double)(nanoseconds() - began) / n, .client = (double)(cpu() - own) / n};
	c.server = (double)(ask('u') - theirs) / n;
	compare(t, window, turns);
	return c;
}

static int by_wall(const void *a, const void *b) {
	double x = ((const struct cost *)a)->wall, y = ((const struct cost *)b)->wall;
	return (x > y) - (x < y);
}

static void measure(const char *host, uint16_t port, size_t window, uint64_t operations, size_t rounds) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1) errx(1, "%s is no IPv4 address", host);
	need("socket", control = socket(AF_INET, SOCK_STREAM, 0));
	need("connect", connect(control, (struct sockaddr *)&a, sizeof a));
	endpoint(host, 0);
	receive(&server, sizeof server);
	if (fi_av_insert(av, server.address, 1, &peer, 0, NULL) != 1) errx(1, "the server's address is not understood");
	uint64_t turns = (operations + window - 1) / window;
	for (const struct test *t = tests; t < tests + sizeof tests / sizeof *tests; t++) {
		struct cost costs[ROUNDS];
		measured(t, window, turns / 10 + 1); // connects, and warms up
		for (size_t r = 0; r < rounds; r++) costs[r] = measured(t, window, turns);
		qsort(costs, rounds, sizeof *costs, by_wall);
		struct cost c = costs[rounds / 2];
		printf("%s %zu %.2f %.2f %.2f\n", t->name, window, c.wall, c.client, c.server);
		fflush(stdout);
		fprintf(stderr, "# %s %zu: %.2f to %.2f us\n", t->name, window, costs[0].wall, costs[rounds - 1].wall);
	}
	sendall("q", 1);
}

static uint64_t number(const char *what, const char *text, uint64_t max) {
	char *end;
	uint64_t v = strtoull(text, &end, 10);
	if (*end || end == text || v < 1 || v > max) errx(1, "%s is a number from 1 to %lu, not %s", what, max, text);
	return v;
}

int main(int argc, char **argv) {
	const char *host = "127.0.0.1", *modes[] = {"spin", "wait", "auto"};
	uint64_t port = 0, window = 1, operations = 20000, rounds = 5;
	bool serving = false;
	for (int o; (o = getopt(argc, argv, "sa:m:p:w:i:r:")) != -1;) {
		switch (o) {
		case 's': serving = true; break;
		case 'a': host = optarg; break;
		case 'm':
			for (mode = SPIN; mode <= AUTO && strcmp(optarg, modes[mode]); mode++) continue;
			if (mode > AUTO) errx(1, "-m is spin, wait or auto, not %s", optarg);
			break;
		case 'p': port = number("-p", optarg, 65535); break;
		case 'w': window = number("-w", optarg, WINDOWS); break;
		case 'i': operations = number("-i", optarg, 100000000); break;
		case 'r': rounds = number("-r", optarg, ROUNDS); break;
		default: return 2;
		}
	}
	if (optind != argc || serving == (port != 0)) errx(1, "give -s to serve, or -p PORT of a server; nothing else");
	serving ? serve(host) : measure(host, (uint16_t)port, window, operations, rounds);
}
