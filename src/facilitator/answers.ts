import type { Hex } from 'viem'
import type { Fault } from '../protocol/Problem'
import type { Unavailable } from '../settlement/read/refusals'

/** Why a call is not answered with a success. */
export type Refusal = Fault | Unavailable

/** Why an operation has not succeeded, and the transaction that it has. */
export type Failure = Fault & { status?: 'pending'; transaction?: Hex | '' }

/** `members`: of the JSON of a success, without the payer. */
export type Answered = Failure | Unavailable | { members: object }

/** The JSON of an operation that has not succeeded. x402-specification-v2.md section 7. */
export function failureJson(
  operation: string,
  { code, detail, status, transaction = '' }: Failure,
  { network, payer }: { network: string; payer?: string | undefined },
): object {
  return operation === 'verify'
    ? { isValid: false, invalidReason: code, invalidMessage: detail, payer }
    : {
        ...{ success: false, status, errorReason: code, errorMessage: detail },
        ...{ payer, transaction, network },
      }
}
