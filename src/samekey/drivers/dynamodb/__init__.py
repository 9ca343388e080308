"""DynamoDB, through botocore and aiobotocore."""
