package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
)

// A pool of this process's own. 'farkv up' makes one that processes share: open that with
// stores.OpenDB("shm:farkv", stores.DBOptions{}).
func Example() {
	pool, err := stores.Create("mem:", "fusee", stores.Params{Records: 1000})
	if err != nil {
		log.Fatal(err)
	}
	db, err := pool.DB(stores.DBOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	ctx := context.Background()
	if err := db.Put(ctx, []byte("paper"), []byte("FUSEE")); err != nil {
		log.Fatal(err)
	}
	value, err := db.Get(ctx, []byte("paper"))
	fmt.Printf("%s %v\n", value, err)
	_, err = db.Get(ctx, []byte("nothing"))
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// FUSEE <nil>
	// true
}
