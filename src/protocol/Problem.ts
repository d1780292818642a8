/** Why an input was refused, as plain data. `detail` is safe to send. */
export type Fault = { code: string; detail: string }

export function fault(code: string, detail: string): Fault {
  return { code, detail }
}

/** Status and title of a code; `retryable`: the same request may succeed later. */
export type Kind = { status: number; title: string; retryable?: true }

/** Base URI of the problem types of the MPP draft. */
export const mppBase = 'https://paymentauth.org/problems'

/** https://datatracker.ietf.org/doc/draft-ryan-httpauth-payment/ section "Error Codes". */
const mppKinds = {
  'payment-required': { status: 402, title: 'Payment Required' },
  'payment-expired': { status: 402, title: 'Payment Expired' },
  'verification-failed': { status: 402, title: 'Verification Failed' },
  'method-unsupported': { status: 400, title: 'Method Unsupported' },
  'malformed-credential': { status: 402, title: 'Malformed Credential' },
  'invalid-challenge': { status: 402, title: 'Invalid Challenge' },
} as const satisfies Record<string, Kind>

const ownKinds = {
  'sign-in-refused': { status: 402, title: 'Sign-In Refused' },
  'channel-unknown': { status: 402, title: 'Channel Unknown' },
  'not-entitled': { status: 402, title: 'Not Entitled' },
  'bad-request': { status: 400, title: 'Bad Request' },
  'invalid-path': { status: 400, title: 'Invalid Path' },
  'invalid-parameter': { status: 400, title: 'Invalid Parameter' },
  'invalid-address': { status: 400, title: 'Invalid Address' },
  'invalid-signature': { status: 400, title: 'Invalid Signature' },
  'malformed-payment-signature': { status: 400, title: 'Malformed Payment Signature' },
  'multiple-credentials': { status: 400, title: 'Multiple Credentials' },
  unauthorized: { status: 401, title: 'Unauthorized' },
  'not-found': { status: 404, title: 'Not Found' },
  'method-not-allowed': { status: 405, title: 'Method Not Allowed' },
  'payment-in-progress': { status: 409, title: 'Payment In Progress', retryable: true },
  'payment-mismatch': { status: 409, title: 'Payment Belongs To Another Request' },
  'idempotency-conflict': { status: 409, title: 'Idempotency Key Conflict' },
  halted: { status: 409, title: 'Halted' },
  'below-minimum': { status: 409, title: 'Below Minimum' },
  'already-approved': { status: 409, title: 'Already Approved' },
  'already-sponsored': { status: 409, title: 'Already Sponsored' },
  'invalid-redeem-token': { status: 400, title: 'Invalid Redeem Token' },
  'body-too-slow': { status: 408, title: 'Body Too Slow', retryable: true },
  'redeem-exhausted': { status: 410, title: 'Redeem Exhausted' },
  'body-too-large': { status: 413, title: 'Body Too Large' },
  'precondition-failed': { status: 412, title: 'Precondition Failed' },
  'uri-too-long': { status: 414, title: 'URI Too Long' },
  'unsupported-media-type': { status: 415, title: 'Unsupported Media Type' },
  'asset-balance-too-low': { status: 422, title: 'Asset Balance Too Low' },
  'balance-too-young': { status: 422, title: 'Balance Too Young' },
  'has-gas': { status: 422, title: 'Has Gas' },
  'not-an-eoa': { status: 422, title: 'Not An Externally Owned Account' },
  'approve-fails': { status: 422, title: 'Approve Fails' },
  'signature-required': { status: 422, title: 'Signature Required' },
  'rate-limited': { status: 429, title: 'Rate Limited', retryable: true },
  'internal-error': { status: 500, title: 'Internal Error', retryable: true },
  'upstream-unreachable': { status: 502, title: 'Upstream Unreachable', retryable: true },
  'upstream-failed': { status: 502, title: 'Upstream Failed', retryable: true },
  'delivery-failed': { status: 502, title: 'Delivery Failed' },
  'not-ready': { status: 503, title: 'Not Ready', retryable: true },
  paused: { status: 503, title: 'Paused', retryable: true },
  'budget-spent': { status: 503, title: 'Budget Spent', retryable: true },
  'settlement-pending': { status: 503, title: 'Settlement Pending', retryable: true },
  'settlement-reverted': { status: 503, title: 'Settlement Reverted', retryable: true },
  'upstream-timeout': { status: 504, title: 'Upstream Timeout', retryable: true },
} as const satisfies Record<string, Kind>

const kinds: Record<string, Kind> = Object.assign(Object.create(null), mppKinds, ownKinds)

/** Codes with a status and title of their own. */
export type Code = keyof typeof mppKinds | keyof typeof ownKinds

/** Status and title of a code; undefined for a code that has none. */
export function kindOf(code: string): Kind | undefined {
  return kinds[code]
}

type Options = {
  /** Response headers besides the content type. */
  headers?: Readonly<Record<string, string>>
  /** Further members of the JSON body; must be safe to send. */
  members?: Readonly<Record<string, unknown>>
  cause?: unknown
}

/** A problem of the code's kind. */
export function of(code: Code, detail: string, options: Options = {}): ProblemError {
  const kind = kinds[code] ?? { status: 500, title: 'Internal Error' }
  return new ProblemError({ code, detail, ...kind, ...options })
}

/**
 * The problem of a fault: of the fault's own kind if it has one. Else it has the fallback's kind,
 * and the fault's code, an x402 reason, as member `reason`.
 */
export function ofFault(fault: Fault, fallback: Code, options: Options = {}): ProblemError {
  if (Object.hasOwn(kinds, fault.code)) return of(fault.code as Code, fault.detail, options)
  return of(fallback, fault.detail, {
    ...options,
    members: { reason: fault.code, ...options.members },
  })
}

/** The same problem with further response headers. */
export function withHeaders(
  problem: ProblemError,
  headers: Readonly<Record<string, string>>,
): ProblemError {
  return new ProblemError({
    ...problem,
    headers: { ...problem.headers, ...headers },
    cause: problem.cause,
  })
}

/** Whether a value is a fault, in a union `something | Fault`. */
export function isFault(value: object): value is Fault {
  return 'code' in value && 'detail' in value && Object.keys(value).length === 2
}

/**
 * JSON body of a problem. `baseUrl`, without a trailing slash, prefixes our own types. Without it
 * they are relative references, which RFC 9457 resolves against the request.
 */
export function toJson(problem: ProblemError, baseUrl = '') {
  return {
    ...problem.members,
    type: problem.type.startsWith('/') ? baseUrl + problem.type : problem.type,
    title: problem.title,
    status: problem.status,
    detail: problem.detail,
    code: problem.code,
  }
}

/** An answer that is an error: RFC 9457 problem details with a status and headers. */
export class ProblemError extends Error {
  override readonly name = 'ProblemError'
  /** Absolute for types of the MPP draft; `/problems/{code}` for ours, see `toJson`. */
  readonly type: string
  readonly title: string
  readonly status: number
  readonly code: string
  readonly detail: string
  readonly headers: Readonly<Record<string, string>>
  readonly members: Readonly<Record<string, unknown>>
  /** x402 reason code: the member `reason`, for `error` and `errorReason`. */
  readonly reason: string | undefined
  /** Whether the same request may succeed later. */
  readonly retryable: boolean

  constructor(input: Input) {
    super(input.detail, input.cause === undefined ? undefined : { cause: input.cause })
    this.code = input.code
    this.type = Object.hasOwn(mppKinds, input.code)
      ? `${mppBase}/${input.code}`
      : `/problems/${input.code}`
    this.title = input.title
    this.status = input.status
    this.detail = input.detail
    this.headers = input.headers ?? {}
    this.members = input.members ?? {}
    this.reason = typeof this.members.reason === 'string' ? this.members.reason : undefined
    this.retryable = input.retryable ?? false
  }
}

type Input = Fault & Omit<Kind, 'retryable'> & Options & { retryable?: boolean }
