module testbed/router

go 1.26.0
