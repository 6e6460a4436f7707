package rpc

import "github.com/farkv/farkv/node/rdma"

// Request is a request to a peer. The worker owns it until Answer or Drop.
type Request struct {
	Proc   uint16
	Body   []byte // in a buffer of the mailbox; valid until Answer or Drop
	Client rdma.ClientID

	peer *Peer
	id   uint64
	from rdma.BoxAddr
	m    *rdma.Message
}

// Answer sends the answer and ends the request. The handler defines the status. The body is copied.
// The spans are gathered from the memory of the node beside which the worker runs, and must not
// change until the answer is delivered. It does not wait. On an error nothing was sent: the worker
// is closed, or was fenced off. The body may be a part of the request's: it is copied before the
// buffer is given back.
func (r *Request) Answer(status uint16, body []byte, spans ...rdma.Span) error {
	p := r.peer
	d := spare(&p.spareAnswers)
	err := d.send(p.ep, "answer", r.from, header{r.id, kindAnswer, status, p.at}, body, spans)
	r.Drop()
	if err != nil {
		p.spareAnswers = append(p.spareAnswers, d)
		return err
	}
	// The delivery outlives the request: the peer repeats it if the mailbox is full.
	d.answer, d.until = true, p.ep.Now()+answerPatience
	p.answers = append(p.answers, d)
	p.stats.Served++
	return nil
}

// Drop ends the request without an answer. Its caller waits until it gives up.
func (r *Request) Drop() {
	p := r.peer
	if p == nil {
		panic("rpc: request ended twice")
	}
	p.box.Release(r.m)
	*r = Request{}
	p.spareRequests = append(p.spareRequests, r)
}
