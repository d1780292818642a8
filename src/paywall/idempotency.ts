import * as Problem from '../protocol/Problem'

const keyPattern = /^[\x21-\x7e]{1,255}$/

/**
 * `Idempotency-Key`, or the x402 payment-identifier of a credential; if both are sent, they must be
 * equal. Throws ProblemError `bad-request`.
 */
export function idempotencyKey(
  headers: Headers,
  identifier: string | undefined,
): string | undefined {
  const header = headers.get('idempotency-key') ?? undefined
  if (header !== undefined && identifier !== undefined && header !== identifier)
    throw Problem.of(
      'bad-request',
      'Idempotency-Key and payment-identifier differ: send one of them.',
      {
        members: { field: 'Idempotency-Key' },
      },
    )
  const key = header ?? identifier
  if (key !== undefined && !keyPattern.test(key))
    throw Problem.of('bad-request', 'Idempotency-Key must be 1 to 255 visible ASCII characters.', {
      members: { field: 'Idempotency-Key' },
    })
  return key
}
