//go:build ibverbs && linux

#include "verbs.h"

#include <errno.h>
#include <string.h>
#include <time.h>

// As in package rdma; a masked compare and swap is never posted.
enum { op_read = 1, op_write = 2, op_cas = 3, op_faa = 5, op_send = 6 };
enum { flag_fence = 1, flag_signal = 2, flag_inline = 4 };
enum { most = 64 }; // work requests of one list, which are on the stack

static void fill(struct ibv_send_wr *wr, struct ibv_sge *sge, const struct fk_request *q, uint32_t key)
{
	memset(wr, 0, sizeof *wr);
	sge->addr = q->local;
	sge->length = q->n;
	sge->lkey = q->key;
	wr->wr_id = q->id;
	wr->sg_list = sge;
	wr->num_sge = q->n > 0; // a length of 0 would mean 2 GiB to some
	if (q->flags & flag_fence)
		wr->send_flags |= IBV_SEND_FENCE;
	if (q->flags & flag_signal)
		wr->send_flags |= IBV_SEND_SIGNALED;
	if (q->flags & flag_inline)
		wr->send_flags |= IBV_SEND_INLINE;
	switch (q->op) {
	case op_read:
	case op_write:
		wr->opcode = q->op == op_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		wr->wr.rdma.remote_addr = q->remote;
		wr->wr.rdma.rkey = key;
		break;
	case op_send:
		wr->opcode = IBV_WR_SEND;
		break;
	default:
		wr->opcode = q->op == op_cas ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = q->remote;
		wr->wr.atomic.compare_add = q->a;
		wr->wr.atomic.swap = q->b;
		wr->wr.atomic.rkey = key;
	}
}

// post_group posts in lists of most requests. A list that is not taken whole ends the group: bad is
// the first request that was not taken, and err says why.
static void post_group(struct fk_group *g, const struct fk_request *q)
{
	struct ibv_send_wr wrs[most], *bad;
	struct ibv_sge sges[most];

	g->taken = 0;
	g->err = 0;
	while (g->taken < g->n) {
		int n = g->n - g->taken < most ? g->n - g->taken : most;

		for (int i = 0; i < n; i++) {
			fill(&wrs[i], &sges[i], q + g->taken + i, g->key);
			wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
		}
		bad = NULL;
		g->err = ibv_post_send((struct ibv_qp *)g->pair, wrs, &bad);
		if (g->err) {
			g->taken += bad ? bad - wrs : 0;
			return;
		}
		g->taken += n;
	}
}

void fk_post(struct fk_group *groups, int n, struct fk_request *requests)
{
	for (int i = 0; i < n; i++)
		post_group(&groups[i], requests + groups[i].first);
}

// now is only compared with itself: its clock need not be that of realtime.Now.
static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int fk_poll(struct ibv_cq *cq, struct fk_completion *into, int n, int64_t spin)
{
	struct ibv_wc wcs[32];
	int64_t until = 0;
	int got;

	if (n > 32)
		n = 32;
	while ((got = ibv_poll_cq(cq, n, wcs)) == 0 && spin > 0) {
		int64_t t = now();

		if (!until)
			until = t + spin;
		else if (t > until)
			return 0;
	}
	for (int i = 0; i < got; i++) {
		into[i].id = wcs[i].wr_id;
		into[i].status = wcs[i].status;
		into[i].vendor = wcs[i].vendor_err;
		into[i].n = wcs[i].byte_len;
		into[i].pair = wcs[i].qp_num;
	}
	return got < 0 ? -EIO : got;
}

// Events are acknowledged as they are taken: ibv_destroy_cq waits for those that are not.
int fk_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;
	int n = 0;

	while (n < 64 && ibv_get_cq_event(channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1); // that is little beside the sleep which it ends
		n++;
	}
	return n;
}

struct ibv_qp *fk_pair(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, int depth, uint32_t *inline_bytes, int port,
		       int access)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = *inline_bytes },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int err;

	if (!qp)
		return NULL;
	*inline_bytes = init.cap.max_inline_data;
	if (access == 1)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	if (access == 2)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	err = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err) {
		ibv_destroy_qp(qp);
		errno = err;
		return NULL;
	}
	return qp;
}

int fk_connect(struct ibv_qp *qp, int port, int gid_index, uint32_t psn, uint8_t rd_atomic_in, const struct fk_card *remote)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = remote->mtu,
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic = rd_atomic_in,
		.min_rnr_timer = 12, // 0.64 ms
		.ah_attr = { .dlid = remote->lid, .port_num = port },
	};
	int err;

	if (remote->ethernet) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 64;
		attr.ah_attr.grh.sgid_index = gid_index;
		memcpy(attr.ah_attr.grh.dgid.raw, remote->gid, sizeof remote->gid);
	}
	err = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = psn;
	attr.max_rd_atomic = remote->rd_atomic;
	// By the specification a device may take up to four times the timeout, so that it gives up
	// within 8 * 4 * 67 ms = 2.2 s: see giveUp in endpoint.go.
	attr.timeout = 14; // 67 ms for an answer, and that eight times: the worker asks long before
	attr.retry_cnt = 7;
	attr.rnr_retry = 6;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_MAX_QP_RD_ATOMIC);
}

struct ibv_srq *fk_receives(struct ibv_pd *pd, int room)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = room, .max_sge = 1 } };

	return ibv_create_srq(pd, &init);
}

int fk_receive(struct ibv_srq *srq, uint64_t id, uintptr_t at, uint32_t n, uint32_t key)
{
	struct ibv_sge sge = { .addr = at, .length = n, .lkey = key };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_srq_recv(srq, &wr, &bad);
}

int fk_stop(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int fk_end(struct ibv_qp *qp)
{
	fk_stop(qp); // a device that refuses it has lost the queue pair already
	return ibv_destroy_qp(qp);
}

int fk_port_query(struct ibv_context *c, int port, struct fk_port *into)
{
	struct ibv_port_attr attr;
	int err = ibv_query_port(c, port, &attr);

	if (err)
		return err;
	into->state = attr.state;
	into->ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	into->mtu = attr.active_mtu;
	into->lid = attr.lid;
	return 0;
}

struct ibv_mr *fk_register(struct ibv_pd *pd, uintptr_t base, uint64_t size, int remote)
{
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (remote)
		access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	return ibv_reg_mr(pd, (void *)base, size, access);
}
