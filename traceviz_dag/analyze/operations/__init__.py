"""Operations: what each computes and moves at least, how long a perfect kernel would take, and the table of them."""
