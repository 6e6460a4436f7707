# farkv in a few words. Everything here is a plain go command; `make -n WORD` shows it.

SEED   ?= 1
SEEDS  ?= 10000
STORES ?= fusee fusee-cr fusee-nc swarm dm-abd raw rcuckoo race-rtx race-dtx race sherman sherman-rtx sherman-dtx
FUZZ   ?= 30s

.PHONY: test race teeth lint sim suites enumerate soak killed reports fuzz bench peers consul hosts rxe rxe2 rxe-speed ci ci-all

test: ## every test, the short versions; FARKV_LONG=1 for the long ones, FARKV_REPORTS=all for all parts of the reports
	go test ./...

race:
	go test -race ./...

teeth: ## breaks the rules one at a time, on copies: the tests must notice; FARKV_TEETH=all for all rules of membership and ibverbs
	FARKV_LONG=1 go test -timeout 60m -run 'Teeth|Mutants' ./client/... ./node/... ./tui/...

lint:
	@out=$$(gofmt -l .) && test -z "$$out" || { echo "not formatted: $$out"; exit 1; }
	go vet ./...
	go tool staticcheck ./...

sim: STORES += rowan rpc-kv rwrite-kv batch-kv share-kv
sim: ## SEED=first SEEDS=count STORES=...: explore as many seeds in virtual time, but not of raw, which fails on purpose; a failing one is shrunk and replayed
	go build -o bin/farkv ./ops/farkv
	@for store in $(filter-out raw,$(STORES)); do bin/farkv sim fuzz $$store --seed $(SEED) --runs $(SEEDS) || exit 1; done

suites: ## SEED=first SEEDS=count: every store's suites in virtual time, as many seeds each
	FARKV_SEED=$(SEED) FARKV_SEEDS=$(SEEDS) go test -timeout 0 -run '^Test(Store|Contention|Explore|Enumerate)$$' ./client/...

enumerate: ## Rowan-KV: a crash, a death or a loss of power at each step of operations, collection, failover and moves; takes an hour
	FARKV_LONG=1 go test -timeout 3h -v -run '^Test(Enumerate|PowerSteps|FailoverSteps|ReshardingSteps)$$' ./client/rowan

soak: ## minutes of load on stores, whose memory stays bounded, and half a minute of 64 workers on one key
	FARKV_LONG=1 go test -timeout 30m -v -run '^Test(Soak|Hot)$$' ./client/rowan ./workloads/soak

killed: ## processes that are killed every 50 ms while 64 workers use a pool, for ten minutes a store
	FARKV_LONG=1 go test -timeout 60m -v -run '^TestKilled$$' ./client/stores ./client/rcuckoo

reports: ## every report in full, with a line a statement in reports/*/testdata; takes an hour
	FARKV_LONG=1 go test -timeout 3h -v -run '^TestFull$$' ./reports

fuzz: ## FUZZ=time: each fuzz target for that long
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ) $$pkg || exit 1; \
		done; \
	done

bench:
	go test -run '^$$' -bench . -benchmem ./...

peers: ## what a verb costs over tcp, beside libfabric's tcp;ofi_rxm, in one table
	ops/peers/verbs.sh

consul: ## builds the Consul agent that tests run against, once
	.ci/consul

hosts: ## boots hosts of Debian on this machine, and does all that ansible/ has to them; needs root and Debian's packages; PARTS=...: some of it
	.ci/provision -w

rxe: ## STORES=...: the suites and the stores on real verbs, in guests with soft-RoCE; needs Debian's packages, and fetches a kernel once
	STORES="$(STORES)" .ci/rxe/prove

rxe2: ## STORES=...: the stores with memory nodes in one guest and clients in another, over a wire
	STORES="$(STORES)" .ci/rxe/prove -2

rxe-speed: ## what verbs cost in such a guest: perftest, bare loops, our workers, FUSEE, an idle client; MODE=-r in real time
	.ci/rxe/speed $(MODE)

ci: ## what each change must pass; of its longest steps the part whose turn it is
	.ci/run

ci-all: ## all parts of all steps
	TURNS=all .ci/run
