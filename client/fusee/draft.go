package fusee

import (
	"errors"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// draft is an object with what it is to hold. The client has one, for its current operation.
type draft struct {
	layout.Object
	layout.Fields
	// units as a slot's word has them: those of the pair, or of the larger class of which it
	// borrows an object.
	units int
	// bytes of the pair with header and log entry, which are written.
	bytes int
}

// begin takes an object and a journal word for an operation, and prepares what is written into
// it. Nothing is written into the object yet: a crash leaves one that is free by its mark, or was
// never used. The error wraps client.ErrFull when there is no object, and then none was taken.
//
// The order of the steps: numbers first, since a ceiling may have to be written; then the journal
// word, since that may wait for long; the object last, so that none is held meanwhile.
func (c *Client) begin(op layout.Opcode, key, value []byte) error {
	d := &c.draft
	*d = draft{bytes: layout.ObjectBytes(len(key), len(value)), units: layout.UnitsFor(len(key), len(value))}
	class := int(c.s.Classes.Of[d.units])
	// This time is used for the operation's deadline and for its background work.
	c.s.Clock = c.s.Now()
	if c.s.Deadline == session.Unset {
		c.s.Deadline = c.s.Clock + c.s.OpTimeout
	}
	if err := c.s.Number(); err != nil { // it may write a ceiling, which takes a trip
		return err
	}
	d.Fields = layout.Fields{Writer: c.s.ID, Seq: c.s.Numbers.Seq, Op: op, Key: key, Value: value}
	if c.s.Clock > c.s.Deadline {
		return session.TimedOut("take an object")
	}
	// Waiting for a journal word may take long, so no object is held meanwhile.
	word, err := c.views.journalWord()
	if err != nil {
		return err
	}
	toDelete := int(c.s.Classes.Of[layout.UnitsFor(len(key), 0)])
	if d.Object, err = c.mem.Take(class, toDelete, op == layout.OpDelete); errors.Is(err, rdma.ErrFull) {
		// Blocks may be this client's of which it does not know.
		found, failed := c.mem.Ascertain()
		if failed != nil {
			return failed
		}
		if found {
			d.Object, err = c.mem.Take(class, toDelete, op == layout.OpDelete)
		}
	}
	if err != nil {
		return err
	}
	d.Object.Journal = word
	// A borrowed object is as large as its class: the slot's word says so, and others find the
	// class of its block by the word.
	if d.Object.Class != int(c.s.Classes.Of[d.units]) {
		d.units = c.s.Classes.Units[d.Object.Class]
	}
	return nil
}

// write adds the WRITEs of the draft, pair and log entry together, to all data replicas (FUSEE
// 4.5), and those of its journal word to the same nodes. None of them is ordered behind another:
// no slot gets the draft's word before all of them are complete. The batch owns the buffer. A
// crash leaves any part of them; the checksum shows whether the object is complete.
func (d *draft) write(s *session.Session, b *rdma.Batch) {
	d.Fields.Incarnation = d.Object.Incarnation
	d.OldAt = layout.LogAt(len(d.Key), len(d.Value)) + layout.OpBytes
	p := b.Alloc(d.bytes)
	d.Encode(p)
	for r := range s.Space.CopiesOf(d.Unit) {
		at := s.Space.UnitAt(d.Unit, r)
		b.Write(at, p)
		b.WriteWord(s.Journal(s.ID, at.Node()).Add(uint64(d.Object.Journal)*8), layout.Journaled(d.Unit, d.Seq))
	}
}

// word returns the word by which a slot points at the draft.
func (d *draft) word(s *session.Session, hash uint64) race.Word {
	return race.Pack(race.Print(hash), d.units, d.Unit, s.Tag(d.Object.Incarnation))
}
