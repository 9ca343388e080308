-- The record of a key, if any; always one row, so that the store's clock comes along.
return {row({clock}, mine())}
