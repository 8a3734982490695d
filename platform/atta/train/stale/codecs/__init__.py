"""Forms in which hidden rows travel and wait.

| codec | bytes of n rows of d numbers | what is lost |
|---|---|---|
| ``none`` | 4 n d | nothing |
| ``fp16``, ``bf16`` | 2 n d | see ``atta.kvstore.codecs`` |
| ``int8`` | n (4 + d) | half of 1/127 of a row's largest magnitude |
| ``delta-int8`` | 8 + n (4 + d) | as int8, of the difference to the rows that the reader holds |
| ``polyline:P`` | n d to 11 n d, see ``polyline_bytes`` | half of 10^-P |
"""
