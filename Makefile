# The only door: every task of this project is a target here, and CI calls nothing else.
# A target with a `##` comment shows up in `make help`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# Outside the checkout, so that a fresh clone builds warm; testbed/cargo.sh keeps several clones apart.
cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)
export CARGO_TARGET_DIR ?= $(cache)/chronos/target
CARGO := testbed/cargo.sh

# What tests and demo run against. build.sh takes KUBEBUILDER_ASSETS as it is when that is set.
ASSETS := etcd kube-apiserver kubectl kstatus argocd-lua
# One bug of the dispatcher, one of the facade, one of sessions; `make mutants` has all.
MUTANTS_IN_CI := settle-without-token key-ignored seq-without-lock
# What the tests of the chart need beside it.
CHART_ASSETS := helm helm-unittest promtool prometheus prometheus-operator-crds.yaml

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: packages ## Install what is missing, build the test bed (once: some 15 min)
	@testbed/build.sh $(ASSETS) $(CHART_ASSETS) >/dev/null
	testbed/tools.sh python >/dev/null
	testbed/tools.sh node >/dev/null

# Not in the help: every target that needs a tool depends on it. Takes no time when all is there.
.PHONY: packages
packages:
	@testbed/setup.sh test

# A KUBECONFIG counts only when it is given to make: one that merely stands in the environment may be anybody's cluster.
.PHONY: demo
demo: ## Show an alarm from YAML to wake, on a real API server and Postgres (KUBECONFIG=FILE: on that cluster)
	@testbed/setup.sh demo
	testbed/demo.sh $(if $(filter command,$(origin KUBECONFIG)),--kubeconfig '$(KUBECONFIG)')

# Without --all-targets: that would leave out the examples in the documentation.
# Builds with a known bug run beside the tests; the gauntlet's short run afterwards, by itself: it takes a replica that gets no processor
# for half a second for dead.
.PHONY: test
test: setup ## Run all tests: unit, integration, documentation, and a short run of the gauntlet
	@KUBEBUILDER_ASSETS=$$(testbed/build.sh $(ASSETS) $(CHART_ASSETS))
	export KUBEBUILDER_ASSETS
	# Most tests wait for something most of the time: more of them at once than there are cores
	export RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$(($$(nproc) * 2 + 1))}
	testbed/gauntlet.sh build
	$(CARGO) test --locked --no-run
	log=$$(mktemp)
	# The one in the background does not hear a Ctrl-C
	trap 'kill "$${mutants:-}" 2>/dev/null || true; rm -f "$$log"' EXIT
	testbed/gauntlet.sh built mutants --seed 1 $(MUTANTS_IN_CI) >"$$log" 2>&1 & mutants=$$!
	status=0
	$(CARGO) test --locked --no-fail-fast || status=$$?
	wait "$$mutants" || status=$$?
	cat "$$log"
	testbed/gauntlet.sh built run --faults 60 --kinds cheap --seed 2 || status=$$?
	exit "$$status"

# As long as you like. What each run wrote down is kept in DIRECTORY; `testbed/gauntlet.sh check DIRECTORY/SEED` reads it again.
.PHONY: gauntlet
gauntlet: packages ## Break replicas, Postgres, cluster and network, and check every promise (FAULTS=250 SEED=7 KINDS=kill,freeze MODE=leader PACE=apart)
	@testbed/gauntlet.sh run --faults $(or $(FAULTS),250) --kinds $(or $(KINDS),all) $(if $(SEED),--seed $(SEED)) $(if $(MODE),--mode $(MODE)) \
	  $(if $(PACE),--pace $(PACE)) $(if $(DIRECTORY),--directory $(DIRECTORY))

.PHONY: mutants
mutants: packages ## Run builds with a known bug: the gauntlet must find each (ONLY="drop-row new-id")
	@testbed/gauntlet.sh mutants $(ONLY)

# Part of `test`; here by itself, in seconds, for whoever works on the chart.
.PHONY: chart
chart: packages ## Check the chart alone: helm lint and helm-unittest
	@bin=$$(testbed/build.sh helm helm-unittest)
	for values in charts/chronos/ci/*-values.yaml; do
	  "$$bin/helm" lint --strict --quiet charts/chronos --values "$$values"
	done
	"$$bin/helm-unittest" --strict charts/chronos

# What was seen is added to bench/results.jsonl, and the page is made of that, also of what was seen before something failed.
# RESULTS= (empty) keeps a trial out of it; the page of RESULTS=/tmp/mine.jsonl lies beside that file.
RESULTS ?= bench/results.jsonl
results := $(abspath $(RESULTS))
report = $(if $(RESULTS),bench/report.py --print --results "$(results)" \
  $(if $(filter $(abspath bench/results.jsonl),$(results)),,--out "$(dir $(results))"),true)
.PHONY: bench
bench: packages ## Run the benchmarks, print their tables and write docs/benchmarks.md (ONLY="drain http"; RESULTS= writes nothing)
	@status=0
	$(if $(ONLY),,$(CARGO) bench --locked --bench schedule || status=$$?)
	if [[ " $(or $(ONLY),controller) " == *" controller "* ]]; then
	  KUBEBUILDER_ASSETS=$$(testbed/build.sh etcd kube-apiserver)
	  export KUBEBUILDER_ASSETS
	fi
	$(if $(RESULTS),BENCH_RESULTS="$(results)") $(CARGO) bench --locked --bench dispatch -- $(ONLY) || status=$$?
	$(report) || status=$$?
	exit "$$status"

# Installs each of them when its turn comes, below the cache, by the lock files of bench/peers.
.PHONY: bench-peers
bench-peers: packages ## Run other schedulers beside ours: one drain of each, then the best three in everything (PEER="river": only these, at most 15 minutes each; pg-cron: what it can be measured by)
	@testbed/setup.sh test peers
	export PEERS_CACHE=$(cache)/chronos-peers
	status=0
	$(if $(RESULTS),BENCH_RESULTS="$(results)") $(CARGO) bench --locked --bench dispatch -- peers $(PEER) || status=$$?
	$(report) || status=$$?
	exit "$$status"

# Not part of `test`: a search has no end. `test` replays what it found (fuzz/corpus).
.PHONY: fuzz
fuzz: ## Try every parser on made-up input, 20 s each (TARGET=cron SECONDS_EACH=60)
	@testbed/setup.sh test fuzz
	SECONDS_EACH="$(SECONDS_EACH)" TARGET="$(TARGET)" INPUT="$(INPUT)" testbed/fuzz.sh

.PHONY: image
image: packages ## Build the image localhost/chronos (TAG=…) and check it, with docker, podman, buildah or umoci
	@testbed/image.sh $(TAG)

# Not part of `test`: it needs root, a quarter of an hour, and the whole machine.
E2E_ASSETS := etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy coredns pause helm \
  source-controller kustomize-controller router git-http
.PHONY: e2e
e2e: ## Try image and chart on a real cluster of one node: faults, upgrades, uninstall, Flux (root; STEPS="install flux")
	@testbed/setup.sh test cluster
	KUBEBUILDER_ASSETS=$$(testbed/build.sh $(E2E_ASSETS))
	export KUBEBUILDER_ASSETS
	E2E_STEPS="$(STEPS)" testbed/e2e.sh

.PHONY: lint
lint: packages ## Check format, clippy, shell scripts and the links of the documents
	@$(CARGO) fmt --check
	for manifest in fuzz/Cargo.toml bench/peers/*/Cargo.toml; do $(CARGO) fmt --check --manifest-path "$$manifest"; done
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --test gauntlet -- -D warnings # no test by itself, and so not among all
	find . -path ./target -prune -o -path ./.git -prune -o -name '*.sh' -print0 |
	  xargs -0 shellcheck --external-sources --source-path=SCRIPTDIR --source-path=. .ci/run bench/peers/*/peer bench/peers/pg-cron/measure
	testbed/links.py

# Not part of `lint`: it installs cargo-deny first. Advisories need RustSec's database, which lies on GitHub.
.PHONY: deny
deny: packages ## Check licenses, sources and banned crates of all dependencies (CHECKS=advisories where GitHub can be reached)
	@testbed/deny.sh $(CHECKS)

.PHONY: fmt
fmt: packages ## Format the Rust code
	@$(CARGO) fmt
	for manifest in fuzz/Cargo.toml bench/peers/*/Cargo.toml; do $(CARGO) fmt --manifest-path "$$manifest"; done

.PHONY: generate
generate: packages ## Write what is generated: crds/ and the chart's copy, docs/openapi.json, docs/reference/, docs/benchmarks.md, gitops/argocd/argocd-cm.yaml, fuzz/Cargo.lock
	@tmp=$$(mktemp -d)
	trap 'rm -rf "$$tmp"' EXIT
	$(CARGO) run --quiet --locked --bin chronosd -- crd --out-dir "$$tmp"
	mkdir -p crds
	rm -f crds/*.yaml
	cp "$$tmp"/*.yaml crds/
	rm -f charts/chronos/files/crds/*.yaml
	cp crds/*.yaml charts/chronos/files/crds/
	testbed/chart-reference.py >"$$tmp/chart.md"
	cp "$$tmp/chart.md" docs/reference/chart.md
	$(CARGO) run --quiet --locked --bin chronosd -- openapi >"$$tmp/openapi.json"
	cp "$$tmp/openapi.json" docs/openapi.json
	$(CARGO) run --quiet --locked --bin chronosd -- reference --out-dir docs/reference
	testbed/argocd-cm.sh >"$$tmp/argocd-cm.yaml"
	cp "$$tmp/argocd-cm.yaml" gitops/argocd/argocd-cm.yaml
	bench/report.py
	cp Cargo.lock fuzz/Cargo.lock
	$(CARGO) update --quiet --workspace --manifest-path fuzz/Cargo.toml

# --locked makes the first cargo fail when Cargo.lock is not what Cargo.toml asks for.
.PHONY: verify
verify: packages ## Check that nothing generated is stale and no second TLS library came in
	@tree=$$($(CARGO) tree --locked --edges normal,build,dev --prefix none --format '{p}')
	for crate in openssl-sys aws-lc-rs; do
	  if grep -q "^$$crate " <<<"$$tree"; then
	    echo "verify: $$crate is among the dependencies; Chronos uses rustls with ring and no other TLS library. It comes with:" >&2
	    $(CARGO) tree --locked --edges normal,build,dev --invert "$$crate" >&2
	    exit 1
	  fi
	done
	tmp=$$(mktemp -d)
	trap 'rm -rf "$$tmp"' EXIT
	$(CARGO) run --quiet --locked --bin chronosd -- crd --out-dir "$$tmp"
	diff -ru crds "$$tmp" || { echo "verify: crds/ is stale: run make generate" >&2; exit 1; }
	diff -ru crds charts/chronos/files/crds || { echo "verify: charts/chronos/files/crds is stale: run make generate" >&2; exit 1; }
	testbed/chart-reference.py | diff -u docs/reference/chart.md - || { echo "verify: docs/reference/chart.md is stale: run make generate" >&2; exit 1; }
	$(CARGO) run --quiet --locked --bin chronosd -- openapi >"$$tmp/openapi.json"
	diff -u docs/openapi.json "$$tmp/openapi.json" || { echo "verify: docs/openapi.json is stale: run make generate" >&2; exit 1; }
	$(CARGO) run --quiet --locked --bin chronosd -- reference --out-dir "$$tmp/reference"
	for page in "$$tmp"/reference/*.md; do
	  diff -u "docs/reference/$${page##*/}" "$$page" || { echo "verify: docs/reference/$${page##*/} is stale: run make generate" >&2; exit 1; }
	done
	testbed/argocd-cm.sh >"$$tmp/argocd-cm.yaml"
	diff -u gitops/argocd/argocd-cm.yaml "$$tmp/argocd-cm.yaml" || { echo "verify: gitops/argocd/argocd-cm.yaml is stale: run make generate" >&2; exit 1; }
	bench/report.py --check || { echo "verify: docs/benchmarks.md is not what bench/results.jsonl says: run make generate" >&2; exit 1; }
	# Made anew in its place, because its paths are relative, and put back as it was whatever comes out.
	cp fuzz/Cargo.lock "$$tmp/as-it-was.lock"
	trap 'mv "$$tmp/as-it-was.lock" fuzz/Cargo.lock; rm -rf "$$tmp"' EXIT
	cp Cargo.lock fuzz/Cargo.lock
	$(CARGO) update --quiet --workspace --manifest-path fuzz/Cargo.toml
	diff -u "$$tmp/as-it-was.lock" fuzz/Cargo.lock || { echo "verify: fuzz/Cargo.lock is stale: run make generate" >&2; exit 1; }

.PHONY: clean-cache
clean-cache: ## Remove what setup and cargo built outside the checkout
	rm -rf "$(CARGO_TARGET_DIR)" "$(cache)/chronos-testbed" "$(cache)/chronos-peers"
