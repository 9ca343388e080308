"""Operations that are cancelled wherever they wait."""
