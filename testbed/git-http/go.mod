module testbed/git-http

go 1.26.0
