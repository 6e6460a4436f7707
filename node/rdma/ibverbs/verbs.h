//go:build ibverbs && linux

// What package ibverbs asks of libibverbs: a few calls with flat arguments, so that a post and a poll are one call each.

#ifndef FARKV_VERBS_H
#define FARKV_VERBS_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

// These three are laid out as their namesakes in adapter.go. device.go checks the sizes.
struct fk_request {
	uint64_t remote, local, a, b, id;
	uint32_t n, key;
	uint8_t op, flags, pad[6];
};

struct fk_group {
	uintptr_t pair;
	uint32_t key, first, n, taken;
	int32_t err;
	uint32_t pad;
};

struct fk_completion {
	uint64_t id;
	uint32_t status, vendor, n, pair;
};

// What is needed of the other end's card: see card.go.
struct fk_card {
	uint32_t qpn, psn;
	uint16_t lid;
	uint8_t gid[16];
	uint8_t ethernet, mtu, rd_atomic;
};

struct fk_port {
	int state, ethernet, mtu;
	uint16_t lid;
};

// fk_post posts groups of requests, each to one queue pair, as far as it takes them.
void fk_post(struct fk_group *groups, int n, struct fk_request *requests);

// fk_poll takes at most n completions, waiting spin nanoseconds for the first. It returns how many, or an errno made negative.
int fk_poll(struct ibv_cq *cq, struct fk_completion *into, int n, int64_t spin);

// fk_event takes the events of a channel that does not block, and acknowledges them; it returns how many, at most 64.
int fk_event(struct ibv_comp_channel *channel);

// fk_pair makes a queue pair in the state INIT; access is what peers may do: 0 nothing, 1 READ, 2 all. Messages come into
// buffers of srq, if there is one.
struct ibv_qp *fk_pair(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, int depth, uint32_t *inline_bytes, int port,
		       int access);

// fk_receives makes a shared receive queue. fk_receive posts n registered bytes at an address to
// it; it returns an errno.
struct ibv_srq *fk_receives(struct ibv_pd *pd, int room);
int fk_receive(struct ibv_srq *srq, uint64_t id, uintptr_t at, uint32_t n, uint32_t key);

// fk_stop has a queue pair take no more messages.
int fk_stop(struct ibv_qp *qp);

// fk_connect takes a queue pair to the state RTS. gid_index is this end's address.
int fk_connect(struct ibv_qp *qp, int port, int gid_index, uint32_t psn, uint8_t rd_atomic_in, const struct fk_card *remote);

// fk_end takes a queue pair out of use and destroys it.
int fk_end(struct ibv_qp *qp);

int fk_port_query(struct ibv_context *c, int port, struct fk_port *into);
struct ibv_mr *fk_register(struct ibv_pd *pd, uintptr_t base, uint64_t size, int remote);

#endif
