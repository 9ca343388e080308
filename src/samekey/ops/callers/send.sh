set -eu
# The key is made once and kept in a file; every further call finds it there. Without one, nothing is sent.
[ -s order-17.key ] || { od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > order-17.new && mv order-17.new order-17.key; }
key=$(cat order-17.key)
[ "${#key}" -ge 16 ] || { echo "order-17.key holds no key: nothing was sent" >&2; exit 1; }
lost=no
for wait in 1 1 2 4 8 15 15 15 0; do
  : > order-17.head; : > order-17.answer
  status=$(curl --silent --show-error --max-time 20 --write-out '%{http_code}' --dump-header order-17.head \
    --output order-17.answer --header "@HEADER@: @EQ@$key@EQ@" --header 'Content-Type: application/json' \
    --data-binary @order-17.json @URL@) || status=none
  open=no
  case $status in
    none | @CASES@) open=yes ;;
    5*) grep -qi '^@REPLAYED@: *true' order-17.head || open=yes ;;
    409) grep -Eq '"code" *: *"(@CODES@)"' order-17.answer && open=yes ;;
    3* | @DOUBTFUL_CASES@) open=$lost ;; # after a lost attempt, a gateway may have said that
    *) grep -qi '^content-type:.*html' order-17.head && open=$lost ;;
  esac
  [ $open = yes ] || { cat order-17.head order-17.answer; exit 0; }
  case $status in 425 | 429) ;; *) lost=yes ;; esac
  sleep $wait
done
echo "No final answer yet. Keep order-17.key, and run this again later." >&2
exit 1
