// `go run client.go PORT REST,REST,...`: as clients.py says, with Go's own http.Client.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	client := &http.Client{Timeout: 20 * time.Second}
	asked, lost := 0, 0
	for _, word := range strings.Split("0,"+os.Args[2], ",") {
		rest, _ := strconv.ParseFloat(word, 64)
		time.Sleep(time.Duration(rest * float64(time.Second)))
		asked++
		where := "http://127.0.0.1:" + os.Args[1] + "/echo"
		response, err := client.Post(where, "text/plain", strings.NewReader("hello"))
		if err != nil {
			lost++
			continue
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != 200 {
			lost++
		}
	}
	fmt.Printf("{\"asked\": %d, \"lost\": %d}\n", asked, lost)
}
