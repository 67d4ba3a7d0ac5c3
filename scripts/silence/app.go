// What conform asks for, by Go's net/http: `app PORT`.
package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func rest(seconds float64) { time.Sleep(time.Duration(seconds * float64(time.Second))) }

func many(piece string, count float64) [][]byte {
	pieces := [][]byte{}
	for place := 0; place < int(count); place++ {
		pieces = append(pieces, []byte(piece))
	}
	return pieces
}

func answer(out http.ResponseWriter, asked *http.Request) {
	number, _ := strconv.ParseFloat(asked.URL.RawQuery, 64)
	path := asked.URL.Path
	if path == "/slow" || path == "/late" {
		rest(number)
	}
	body := []byte{}
	if path != "/early" {
		body, _ = io.ReadAll(asked.Body)
	}
	pieces, between := [][]byte{[]byte("hello")}, 0.0
	switch path {
	case "/echo", "/late":
		pieces = [][]byte{body}
	case "/some":
		pieces = [][]byte{bytes.Repeat([]byte{0}, int(number))}
	case "/drops":
		pieces, between = many("0123456789", number), 0.004
	case "/pause":
		pieces, between = [][]byte{[]byte("first"), []byte("after")}, number
	case "/events":
		pieces, between = many("data: tick\n\n", number), 0.4
		out.Header().Set("Content-Type", "text/event-stream")
	}
	if path != "/events" {
		total := 0
		for _, piece := range pieces {
			total += len(piece)
		}
		out.Header().Set("Content-Length", strconv.Itoa(total))
	}
	for place, piece := range pieces {
		if place > 0 {
			rest(between)
		}
		out.Write(piece)
		if flusher, can := out.(http.Flusher); can && len(pieces) > 1 {
			flusher.Flush()
		}
	}
}

func main() {
	server := &http.Server{
		Addr:              "127.0.0.1:" + os.Args[1],
		Handler:           http.HandlerFunc(answer),
		ReadHeaderTimeout: 3 * time.Second,
		IdleTimeout:       3 * time.Second,
	}
	told, gone := make(chan os.Signal, 1), make(chan bool)
	signal.Notify(told, syscall.SIGTERM)
	go func() {
		<-told
		server.Shutdown(context.Background())
		close(gone)
	}()
	server.ListenAndServe()
	<-gone
}
