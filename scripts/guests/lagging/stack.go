// `stack client|proxy PORT DOWNLOADS BYTES SECONDS PIECE`: Go's own HTTP/2, whose user
// reads late and in small pieces; or a reverse proxy with such buffers, whose clients do.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// What ReverseProxy copies by.
type pool struct{ piece int }

func (p pool) Get() []byte { return make([]byte, p.piece) }
func (p pool) Put([]byte)  {}

func number(place int) int {
	found, err := strconv.Atoi(os.Args[place])
	if err != nil {
		panic(err)
	}
	return found
}

func main() {
	downloads, size, late, piece := number(3), number(4), number(5), number(6)
	base := "https://127.0.0.1:" + os.Args[2]
	client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if os.Args[1] == "proxy" {
		target, _ := url.Parse(base)
		proxy := httputil.NewSingleHostReverseProxy(target)
		proxy.Transport, proxy.BufferPool = client.Transport, pool{piece}
		front := httptest.NewServer(proxy)
		base, client = front.URL, &http.Client{Timeout: 60 * time.Second}
	}
	var lost atomic.Int64
	var all sync.WaitGroup
	ask := func(path string, rest time.Duration, wanted int) {
		defer all.Done()
		response, err := client.Get(base + path)
		if err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			lost.Add(1)
			return
		}
		defer response.Body.Close()
		time.Sleep(rest)
		buffer, came := make([]byte, piece), 0
		for err == nil {
			var n int
			n, err = response.Body.Read(buffer)
			came += n
		}
		if err != io.EOF || came != wanted {
			fmt.Fprintln(os.Stderr, path, came, err)
			lost.Add(1)
		}
	}
	all.Add(downloads + 1)
	for each := 0; each < downloads; each++ {
		go ask("/some?"+os.Args[4], time.Duration(late)*time.Second, size)
	}
	go ask("/slow?"+strconv.Itoa(late+1), 0, len("hello"))
	all.Wait()
	fmt.Printf("{\"asked\": %d, \"lost\": %d}\n", downloads+1, lost.Load())
}
