# The key is made once and kept in a file; every further call finds it there.
[ -s order-17.key ] || uuidgen > order-17.key
curl --retry 8 --retry-all-errors --retry-max-time 60 --max-time 20 --include \
  --header "@HEADER@: @EQ@$(cat order-17.key)@EQ@" --header 'Content-Type: application/json' \
  --data-binary @order-17.json @URL@
