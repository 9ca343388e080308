"""What botocore's errors mean: ours, each with a sentence that says what to do."""

from __future__ import annotations

from typing import Any, Final

from botocore import exceptions as aws

from ...errors import (
    ConfigurationError,
    ConnectionLost,
    SamekeyError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
)
from .url import DynamoURL

THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "LimitExceededException",
        "TransactionConflictException",  # somebody else's transaction on this very item
        "ReplicatedWriteConflictException",
    }
)
"""Nothing was done, and it may well be done in a moment."""

_UNSURE: Final = frozenset({"InternalServerError", "InternalServerErrorException", "InternalFailure"})
_CREDENTIALS: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "IncompleteSignatureException",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        "InvalidClientTokenId",
        "ExpiredTokenException",
        "ExpiredToken",
    }
)
_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied", "NotAuthorized"})
_MISSING: Final = "ResourceNotFoundException"

_NO_CREDENTIALS: Final = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.ProfileNotFound,
    aws.ConfigNotFound,
    aws.ConfigParseError,
)
_NOT_SENT: Final = (
    aws.EndpointConnectionError,
    aws.ConnectTimeoutError,
    aws.ProxyConnectionError,
    aws.SSLError,
)
_BROKEN: Final = (aws.ConnectionClosedError, aws.HTTPClientError, aws.ResponseStreamingError, OSError)


def code_of(error: Exception) -> str | None:
    """The code of an error that DynamoDB gave; None for any other."""
    response: Any = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(error, aws.ClientError) else None


def translate(error: Exception, operation: str, url: DynamoURL) -> Exception:
    """An error of ours for one of botocore's; what is neither stays as it is."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, aws.ClientError):
        return _from_code(error, operation, url)
    if isinstance(error, _NO_CREDENTIALS):
        return ConfigurationError(
            f"There are no AWS credentials for DynamoDB ({error}). Give this process a role, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; they do not belong in the URL."
        )
    if isinstance(error, aws.InvalidRegionError | aws.NoRegionError | aws.UnknownRegionError):
        return ConfigurationError(
            f"{url.region!r} is not an AWS region: write dynamodb://eu-central-1/table."
        )
    if isinstance(error, _NOT_SENT):
        return StoreUnreachable(
            f"DynamoDB cannot be reached at {url.endpoint or 'the endpoint of ' + url.region}. Is the region "
            f"or the endpoint in the URL right, and is there a way to it? ({type(error).__name__})"
        )
    if isinstance(error, aws.ReadTimeoutError | TimeoutError):
        return StoreUnavailable("DynamoDB did not answer in time.")
    if isinstance(error, _BROKEN):
        return ConnectionLost(f"The connection to DynamoDB broke: {type(error).__name__}.")
    if isinstance(error, aws.BotoCoreError):
        # Credentials that could not be fetched just now, among others.
        return StoreUnavailable(f"DynamoDB could not be asked: {error}")
    return error


def _from_code(error: Any, operation: str, url: DynamoURL) -> SamekeyError:
    code = str(code_of(error))
    said = str(error.response["Error"].get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in THROTTLED:
        return StoreBusy(
            f"DynamoDB throttles the table {url.table!r} ({code}). Retry with the same key; if it goes on, "
            "raise the table's capacity."
        )
    if code == _MISSING:
        return SchemaMismatch(
            f"There is no usable DynamoDB table {url.table!r} in {url.region}. Run: samekey migrate "
            f"'{url}', or correct the region or the table in the URL."
        )
    if code in _DENIED:
        return ConfigurationError(
            f"These AWS credentials may not use dynamodb:{operation} on the table {url.table!r} in "
            f"{url.region}. Allow what docs/stores/dynamodb.md lists."
        )
    if code in _CREDENTIALS:
        if "Signature expired" in said or "Signature not yet current" in said:
            return ConfigurationError("AWS refuses this node's clock as wrong. Have it synchronised.")
        return ConfigurationError(f"AWS does not accept these credentials ({code}). Renew or correct them.")
    if "does not match the schema" in said:
        return SchemaMismatch(
            f"The DynamoDB table {url.table!r} has other keys than samekey's. Name another table in the URL "
            "and run: samekey migrate URL"
        )
    if code in _UNSURE or status >= 500:
        return ConnectionLost(f"DynamoDB failed ({code or status}), and may have done what was asked.")
    return StoreError(f"DynamoDB refused {operation} ({code}): {said}")
