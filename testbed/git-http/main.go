// git-http DIRECTORY ADDRESS   serves the git repositories below DIRECTORY, to read, over HTTP, by git's own http-backend
package main

import (
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: git-http DIRECTORY ADDRESS")
	}
	where, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		log.Fatal("git --exec-path: ", err)
	}
	backend := &cgi.Handler{
		Path: strings.TrimSpace(string(where)) + "/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + os.Args[1], "GIT_HTTP_EXPORT_ALL=1"},
	}
	log.Fatal(http.ListenAndServe(os.Args[2], backend))
}
