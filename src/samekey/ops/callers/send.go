package orders

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var openCodes = regexp.MustCompile(`"code"\s*:\s*"(@CODES@)"`)

// Send sends the body under its key until there is a final answer, or ctx ends. The key (a random UUID) was
// made once for the operation, and saved with the body before the first call.
func Send(ctx context.Context, client *http.Client, url, key string, body []byte) (*http.Response, []byte, error) {
	if _, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil); err != nil {
		return nil, nil, err
	}
	own := *client // a redirect is not followed: it would carry the key and the body to another place
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	lost := false // an attempt may have been carried out, and its answer is not known
	for attempt := 0; ; attempt++ {
		wait := time.Duration(rand.Float64() * math.Min(20, 0.5*math.Pow(2, float64(attempt))) * float64(time.Second))
		answer, text, err := once(ctx, &own, url, key, body) // an error: the same key finds out
		if err == nil && !isOpen(answer, text, lost) {
			return answer, text, nil
		}
		lost = lost || err != nil || (answer.StatusCode != 425 && answer.StatusCode != 429)
		if err == nil {
			if asked, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && asked > 0 {
				wait = time.Duration(asked) * time.Second
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("no final answer yet, keep the key and send the same again later: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

func once(ctx context.Context, client *http.Client, url, key string, body []byte) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("@HEADER@", "@EQ@"+key+"@EQ@")
	answer, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer, text, err
}

func isOpen(answer *http.Response, text []byte, lost bool) bool {
	status := answer.StatusCode
	switch status {
	case @STATUSES@:
		return true
	}
	if answer.Header.Get("@REPLAYED@") == "true" {
		return false
	}
	if status >= 500 || (status == http.StatusConflict && openCodes.Match(text)) {
		return true
	}
	// After a lost attempt, what a gateway may say by itself is not the operation's answer.
	switch status {
	case @DOUBTFUL@:
		return lost
	}
	page := strings.Contains(strings.ToLower(answer.Header.Get("Content-Type")), "html")
	return lost && (page || (status >= 300 && status < 400))
}
