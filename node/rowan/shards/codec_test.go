package shards_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// sameBytes returns an error unless a configuration is read as it was written.
func sameBytes(c *shards.Config) error {
	p := c.Encode()
	again, err := shards.Decode(p)
	if err != nil {
		return err
	}
	if fmt.Sprint(again) != fmt.Sprint(c) || !bytes.Equal(again.Encode(), p) {
		return fmt.Errorf("%+v is read as %+v", c, again)
	}
	if most := shards.Bound(len(c.Members), len(c.Shards), c.Replication); len(p) > most {
		return fmt.Errorf("%d bytes, at most %d", len(p), most)
	}
	return nil
}

// TestGolden: a format that is in use does not change. Another one has another number.
func TestGolden(t *testing.T) {
	c := made(t, 5, 1, 3)
	c = must(t)(c.Move(shards.Move{Shard: 0, From: 0, To: 3}))
	c = must(t)(must(t)(c.Fail(2)).Join(0x1234)).Commit()
	c.Shards[4] = shards.Shard{Primary: shards.None, Source: shards.None}
	const want = "0100010305000000" + "0400000000000000" + "0500000000000000" +
		"0000010000000100010000000300010000000400010000003412" + "04000000" +
		"c1020001" + "49010200" + "49030201" + "4a02030004" + "00"
	if err := sameBytes(c); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(c.Encode()); got != want {
		t.Errorf("%+v is\n%s, want\n%s", c, got, want)
	}
}

// TestBound: what New makes fits into the registers, whatever happens to it; the largest pool is
// among that.
func TestBound(t *testing.T) {
	c := made(t, shards.MaxMembers, 48, 3)
	for i := range c.Shards {
		s := &c.Shards[i]
		for _, m := range c.Members {
			if s.Source == shards.None && !s.Has(m.Node) {
				s.Source = m.Node
			}
		}
	}
	p := c.Encode()
	if len(p) > rdma.MaxConfig || len(p) != shards.Bound(shards.MaxMembers, len(c.Shards), 3) {
		t.Errorf("%d shards take %d bytes, and at most %d are stored", len(c.Shards), len(p), rdma.MaxConfig)
	}
	if _, err := shards.Decode(p); err != nil {
		t.Error(err)
	}
}

// TestBadBytes: bytes that Encode did not make are refused.
func TestBadBytes(t *testing.T) {
	p := must(t)(made(t, 5, 2, 3).Move(shards.Move{Shard: 0, From: 0, To: 3})).Encode()
	for n := range p {
		if _, err := shards.Decode(p[:n]); !errors.Is(err, shards.ErrFormat) {
			t.Errorf("%d of %d bytes: %v", n, len(p), err)
		}
	}
	if _, err := shards.Decode(append(bytes.Clone(p), 0)); !errors.Is(err, shards.ErrFormat) {
		t.Errorf("a byte too many: %v", err)
	}
	for i := range p {
		for bit := range 8 {
			q := bytes.Clone(p)
			q[i] ^= 1 << bit
			c, err := shards.Decode(q)
			if err != nil {
				if !errors.Is(err, shards.ErrFormat) {
					t.Errorf("bit %d of byte %d: %v", bit, i, err)
				}
				continue
			}
			if err := c.Check(); err != nil {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
			if err := sameBytes(c); err != nil {
				t.Errorf("bit %d of byte %d: %v", bit, i, err)
			}
			if !bytes.Equal(c.Encode(), q) {
				t.Errorf("bit %d of byte %d is read, and not written", bit, i)
			}
		}
	}
}

// FuzzDecode: bytes are a configuration in one way at most.
func FuzzDecode(f *testing.F) {
	f.Add(made(f, 5, 2, 3).Encode())
	f.Add(must(f)(made(f, 5, 2, 3).Move(shards.Move{Shard: 0, From: 0, To: 3})).Encode())
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := shards.Decode(p)
		if err != nil {
			return
		}
		if again := c.Encode(); !bytes.Equal(again, p) {
			t.Fatalf("%x is read as %+v, which is %x", p, c, again)
		}
	})
}

// FuzzFind: a hash is in the range of its shard, and of no other.
func FuzzFind(f *testing.F) {
	f.Add(uint64(0), uint16(3), uint8(5))
	f.Add(^uint64(0), uint16(48), uint8(6))
	f.Fuzz(func(t *testing.T, hash uint64, perServer uint16, servers uint8) {
		n := 1 + int(servers%8)
		c, err := shards.New([]int{0, 1, 2, 3, 4, 5, 6, 7}[:n], 1+int(perServer%1024), 1)
		if err != nil {
			t.Fatal(err)
		}
		shard := c.Find(hash)
		first, last := c.Range(shard)
		if hash < first || hash > last || c.Find(first) != shard || c.Find(last) != shard {
			t.Fatalf("hash %#x is in shard %d, from %#x to %#x", hash, shard, first, last)
		}
		next := uint64(0)
		for i := range c.Shards {
			first, last := c.Range(i)
			if first != next {
				t.Fatalf("shard %d begins at %#x, and the one before ends below %#x", i, first, next)
			}
			next = last + 1
		}
		if next != 0 {
			t.Fatalf("the last shard ends below %#x", next)
		}
	})
}
