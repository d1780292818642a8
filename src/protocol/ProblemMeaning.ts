import type { Code, Kind } from './Problem'
import * as Problem from './Problem'

/** What a problem code says to the client that receives it, and to the operator. Plain text. */
type Text = {
  /** Why the request was refused, in full sentences. */
  meaning: string
  /** What the client does next. */
  client: string
  /** What the operator does when clients report the code; absent where only the client can act. */
  operator?: string
}

export type Meaning = Text & Kind & { code: Code }

/**
 * The meaning of a code, for its page and for docs/api.md; undefined for a code that no answer has.
 */
export function meaningOf(code: string): Meaning | undefined {
  const kind = Problem.kindOf(code)
  return kind && { code: code as Code, ...kind, ...texts[code as Code] }
}

/** The meanings of all codes, in the order of their statuses. */
export function all(): Meaning[] {
  return Object.keys(texts)
    .flatMap((code) => meaningOf(code) ?? [])
    .sort((a, b) => a.status - b.status)
}

const payAgain = 'Sign one of the fresh offers in the answer and send the request again.'
const sameLater = 'Send the same request with the same credential again after `Retry-After`.'
const redeem =
  'Send the same request with `Payment-Redeem: TOKEN`; `redeem` in the answer has the token, its ' +
  'end and the number of attempts. Do not pay again.'

const spendLater = 'Ask again on the next UTC day, or approve with native coin of your own.'

/** A code of Problem.ts without a meaning here does not compile. */
const texts: Readonly<Record<Code, Text>> = {
  // Codes of the MPP draft. An answer with 402 also has offers.
  'payment-required': {
    meaning: 'The request has no credential. The answer has the offers.',
    client: payAgain,
  },
  'payment-expired': {
    meaning:
      'The challenge, the offer or the signature is no longer valid, or not valid yet. No ' +
      'money moved.',
    client: payAgain,
    operator: 'If many clients report it, compare the clock of this machine with NTP.',
  },
  'verification-failed': {
    meaning:
      'The credential does not pay: `reason` names the cause, such as the signature, the balance ' +
      'or the allowance. No money moved.',
    client: `Correct what \`reason\` names. ${payAgain}`,
  },
  'method-unsupported': {
    meaning: 'The credential is not of the method `evm` with the intent `charge`.',
    client: 'Use one of the challenges of the 402.',
  },
  'malformed-credential': {
    meaning: 'The credential cannot be read: `detail` names the member. No money moved.',
    client: payAgain,
  },
  'invalid-challenge': {
    meaning:
      'The credential is spent, or its challenge was issued for another route, body or service, ' +
      'or names an offer that is no longer made.',
    client: `${payAgain} After a delivery this answer is normal: a credential buys once.`,
    operator:
      'If it follows a restart: `CHALLENGE_SECRETS` or the data directory changed. If it follows ' +
      'a change of `payout`: the challenges of the old payee end at once.',
  },

  // Sign-ins. The answer has offers and a fresh challenge.
  'sign-in-refused': {
    meaning:
      'The sign-in is not a valid one for this request: `reason` names the cause. Nothing is charged ' +
      'or counted.',
    client: 'Sign the fresh challenge of the answer, once for each request, or pay an offer.',
    operator:
      'If it follows a restart: `CHALLENGE_SECRETS` or the data directory changed. If many clients ' +
      'report `invalid_siwx_issued_at_too_old`, compare the clock of this machine with NTP.',
  },
  'channel-unknown': {
    meaning:
      'This service has no record of the payment channel, as after a backup was restored. What the ' +
      'chain shows as claimed counts as charged. No money moved.',
    client: 'Sign a voucher above what was claimed, and send the request again.',
    operator: 'What the lost records had charged and not claimed is lost.',
  },
  'not-entitled': {
    meaning:
      'The sign-in is valid, and the wallet has nothing to use for this request: `reason` says why. ' +
      'Nothing is charged or counted.',
    client: 'Pay one of the offers in the answer.',
  },

  // Requests.
  'bad-request': {
    meaning:
      'The request itself is malformed: its body, its `Host`, its `Idempotency-Key` or its ' +
      '`SIGN-IN-WITH-X`. `detail` says which.',
    client: 'Correct what `detail` names. A credential of the request is unspent.',
  },
  'invalid-path': {
    meaning:
      'The path has an empty segment, an encoded dot segment, a control character, a backslash ' +
      'or a malformed percent sequence.',
    client: 'Send the path as the documents and the 402 write it.',
  },
  'invalid-parameter': {
    meaning: '`invalidParams` names each parameter that is wrong and why. Nothing is charged.',
    client: 'Correct the named parameters and send the request again with the same credential.',
    operator:
      'If correct requests are refused: compare `params`, `body` and the limits of the meter with ' +
      'the upstream.',
  },
  'invalid-address': {
    meaning:
      'The address is not 0x and 40 hex digits with a correct checksum, or it belongs to the ' +
      'service or to a contract.',
    client: 'Name the address of the account that holds the asset.',
  },
  'invalid-signature': {
    meaning: 'The signature is not the EIP-191 signature of the address over the named message.',
    client: 'Sign exactly the message that `detail` has, with the key of the address.',
  },
  'malformed-payment-signature': {
    meaning:
      '`PAYMENT-SIGNATURE` is not base64 of an x402 v2 payment, or `X-PAYMENT` of one of version 1 or 2. ' +
      'No money moved.',
    client: 'Read the offers of a 402 again and let an x402 client sign one.',
  },
  'multiple-credentials': {
    meaning: 'The request has more than one payment credential.',
    client:
      'Send exactly one of `Authorization: Payment`, `PAYMENT-SIGNATURE`, `X-PAYMENT` and `Payment-Redeem`.',
    operator: 'If one client is affected: a proxy joins or repeats its headers.',
  },
  'invalid-redeem-token': {
    meaning: '`Payment-Redeem` is not a token of this service, or the path takes no token.',
    client: 'Send the token of `redeem` to the route that was paid for. Read orders by their URL.',
    operator: 'If it follows a restore: tokens of payments after the backup are lost.',
  },
  unauthorized: {
    meaning: 'The facilitator serves only callers with an API key.',
    client: 'Send `Authorization: Bearer KEY` with a key that the operator gave.',
    operator: 'Add the SHA-256 of the key to `api_keys` of `[facilitator]`.',
  },
  'not-found': {
    meaning:
      'There is no such route, file, token, order or payment, or a parameter names nothing that ' +
      'exists.',
    client: 'Read `/openapi.json` for the routes and their parameters.',
  },
  'method-not-allowed': {
    meaning: 'The path does not take this method; `Allow` lists the methods.',
    client: 'Use a method of `Allow`.',
  },
  'body-too-slow': {
    meaning: 'The body arrived too slowly while the places for bodies were taken.',
    client: 'Send the request again; its credential is unspent.',
    operator: 'If it lasts: raise `buffered_max`, and let a proxy in front read the bodies.',
  },
  'precondition-failed': {
    meaning: '`If-Match` names no current version of the document.',
    client: 'Read the document without `If-Match`.',
  },
  'body-too-large': {
    meaning: 'The body is larger than the limit that `detail` has.',
    client: 'Send less.',
    operator: '`body_max` of `[service]` or of the route is the limit.',
  },
  'uri-too-long': { meaning: 'The URL is longer than 8 KB.', client: 'Send less in the query.' },
  'unsupported-media-type': {
    meaning: 'The body is compressed, so that it cannot be checked before the payment.',
    client: 'Send the body without `Content-Encoding`.',
  },
  'rate-limited': {
    meaning:
      'The address of the client, or the payer, sent too many requests of this kind. ' +
      '`RateLimit-Reset` or `Retry-After` has the seconds.',
    client: 'Wait that long. A credential of the request is unspent.',
    operator:
      'If all clients seem to have one address: set `trust_proxy` to the number of proxies. ' +
      '`paid_per_minute` and `quote_per_minute` are the limits.',
  },

  // Payments.
  'payment-in-progress': {
    meaning: 'Another request with the same money or the same key is in progress.',
    client: 'Send the same request with the same credential again after `Retry-After`.',
  },
  'payment-mismatch': {
    meaning:
      'The money was paid for another request, or started by another form of the credential.',
    client:
      'Send the request that was paid for, with the same `PAYMENT-SIGNATURE` value, its ' +
      '`Idempotency-Key` or its redeem token; of x402 version 1 with its key or token. Do not pay again.',
  },
  'idempotency-conflict': {
    meaning: 'The `Idempotency-Key` belongs to another request of this payer.',
    client: 'Use a new key for a new request.',
  },
  'redeem-exhausted': {
    meaning:
      'The payment was delivered, all attempts to redeem it were used, its 24 hours are over, or its ' +
      'money goes back: then `refund` has the state and the transaction.',
    client:
      'Give the transaction of the answer to the operator if nothing was delivered and `refund` is missing.',
    operator:
      'Search the log for the payment: `payment-undelivered` has the status of the upstream. ' +
      '`turnpike refund ID` sends the money back.',
  },
  'settlement-pending': {
    meaning: 'The transfer was sent and is not confirmed yet. `transaction` names it.',
    client: `${sameLater} Do not sign a second payment.`,
    operator:
      'If it lasts: fees or nodes. See `turnpike_pending_payments` and the reasons of a pause.',
  },
  'settlement-reverted': {
    meaning: 'The transaction failed on chain. No money moved, and the transfer may be retried.',
    client: sameLater,
  },
  'upstream-unreachable': {
    meaning: 'The payment is settled, and the upstream could not be reached.',
    client: redeem,
    operator: 'Run `turnpike check --online`: the name, the address or the port does not answer.',
  },
  'upstream-failed': {
    meaning: 'The payment is settled, and the upstream answered an error or broke its answer off.',
    client: redeem,
    operator:
      'See `upstreamStatus` in the answer and in the log. 401 and 403 mean that your key for the ' +
      'upstream is wrong, 429 that its quota is used.',
  },
  'upstream-timeout': {
    meaning: 'The payment is settled, and the upstream did not answer in time.',
    client: redeem,
    operator: 'Raise `timeout_ms` of the merchant if the upstream needs longer.',
  },

  // The service.
  'internal-error': {
    meaning: 'The service failed. Its log has the error under the request id.',
    client: 'Send the same request again, and report `requestId` if it fails again.',
    operator: 'Search the log for `request-failed` with the id, and report the error as a bug.',
  },
  'not-ready': {
    meaning:
      'The service, the network, the merchant or its upstream cannot sell now; `detail` says ' +
      'which. Nothing is charged.',
    client: sameLater,
    operator: '`GET /readyz` names what is not ready. See the reasons of a pause.',
  },

  // The stock desk.
  halted: {
    meaning: 'The issuer has halted trade of the token. Nothing is charged.',
    client: 'Buy it when the token is no longer halted; `/api/stock/list` shows it.',
  },
  paused: {
    meaning:
      'The operator has paused the sales of the merchant, or the issuer has paused transfers of the ' +
      'token. Nothing is charged.',
    client: sameLater,
    operator: 'Resume the merchant at `/admin` to sell it again.',
  },
  'below-minimum': {
    meaning: 'The pool gives fewer shares than `minimumShares` now. Nothing is charged.',
    client: 'Name a lower `minimumShares`; `estimatedShares` has what the pool gives.',
  },
  'delivery-failed': {
    meaning:
      'The shares could not be delivered, and your money comes back. The answer to your request has ' +
      'the address of the order, `orderUrl`.',
    client:
      'Open `orderUrl` until the state of the order is `refunded`; `refundTx` there is the hash of ' +
      'the transaction that paid you back. Do not pay again.',
    operator: 'Run `turnpike orders show ID`: it has the reason and every transaction.',
  },

  // Sponsored approves.
  'already-approved': {
    meaning: 'The address has approved Permit2 already, so it needs no native coin.',
    client: 'Pay by Permit2.',
  },
  'already-sponsored': {
    meaning: 'The address got native coin before, which happens once.',
    client: 'Send the approve that `approve` of the answer describes, if the answer has one.',
  },
  'asset-balance-too-low': {
    meaning: 'The address holds less of the asset than `min_balance` of the sponsor.',
    client: 'Send the asset to the address first.',
  },
  'balance-too-young': {
    meaning: 'The address has not held the asset for as many blocks as the sponsor requires.',
    client: 'Wait for the blocks that `detail` names and ask again.',
  },
  'has-gas': {
    meaning: 'The native coin of the address pays for an approve already.',
    client: 'Send the approve that `approve` of the answer describes.',
  },
  'not-an-eoa': {
    meaning: 'The address has code or delegates to code. Only plain accounts are sponsored.',
    client: 'Approve Permit2 with native coin of your own.',
  },
  'approve-fails': {
    meaning: 'The token refuses an approve of this address.',
    client: 'Pay from another address.',
  },
  'signature-required': {
    meaning: 'Half of the budget of the day is spent, so the address must sign a message.',
    client: 'Sign `message` of the answer (EIP-191) and send it as `signature`.',
  },
  'budget-spent': {
    meaning: 'The budget of the sponsor for this UTC day is spent.',
    client: spendLater,
    operator: 'Raise `gas_per_day_wei` of the product `sponsor` or `grants_per_day`.',
  },
}
