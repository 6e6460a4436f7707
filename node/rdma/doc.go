// Package rdma is the vocabulary that everything in farkv is written in: addresses, one-sided
// verbs, batches that cost one round trip, and the endpoint through which a store reaches memory
// nodes, time and tasks.
//
// The unit of these algorithms is the round trip, so it is the unit of the code. A worker asks its
// Queue for a Batch, adds verbs to it, posts it with one doorbell a node and waits for it once:
//
//	b := q.Batch()
//	defer b.Release()
//	slot := b.Read(slotAddr, 8)
//	pair := b.Read(pairAddr, 1024)
//	if err := rdma.Do(q, b, timeout); err != nil {
//		return err
//	}
//
// Waiting counts chains: the ops for one replica, in order, are a chain (Batch.Chain begins one),
// and a lone op is one. A quorum protocol waits for some chains, goes on, and releases the batch
// while stragglers fly: the batch and its buffers live until they land.
//
// A batch for which no task waits is background work: it is posted, released or kept, and looked at
// (Batch.Finished) when the worker has time. It costs no trip.
//
// Workers also send each other messages, by a SEND in a batch (see Mailbox), and many of them
// append to one log in the memory of a node (see Ring). These are capabilities of some fabrics.
//
// No verb takes a context: a cancelled verb may still land, so a context would lie. Waits have a
// limit in time.
//
// Fabrics (packages shm, sim, ...) implement Fabric and Endpoint; package rdmatest is the suite
// that each must pass.
package rdma
