set -eu
# The key is made once and kept in a file; every further call finds it there. Without one, nothing is sent.
[ -s order-17.key ] || { od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > order-17.new && mv order-17.new order-17.key; }
key=$(cat order-17.key)
[ "${#key}" -ge 16 ] || { echo "order-17.key holds no key: nothing was sent" >&2; exit 1; }
curl --retry 8 --retry-all-errors --retry-max-time 60 --max-time 20 --include \
  --header "@HEADER@: @EQ@$key@EQ@" --header 'Content-Type: application/json' \
  --data-binary @order-17.json @URL@
