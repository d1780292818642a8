import type { Hex } from 'viem'
import type { Operation } from '../protocol/Facilitation'
import { type Fault, fault } from '../protocol/Problem'
import type { Unavailable } from '../settlement/read/refusals'

/** Why a call is not answered with a success. */
export type Refusal = Fault | Unavailable

/** Why an operation has not succeeded, and the transaction of this call, if it has one. */
type Failure = Fault & { status?: 'pending'; transaction?: Hex | undefined }

/** `members`: of its JSON, beside those of every success. */
export type Success = { members: object }

/** `answer`: in the log and the metrics, where it is not that of the JSON. `payment`: its id. */
type Noted = { answer?: string; payment?: string | undefined; isReplay?: boolean }

export type Answered = Unavailable | ((Failure | Success) & { noted?: Noted })

/** The answer about what was sent and is not decided yet. */
export function pending(what: 'transaction' | 'transfer', transaction: Hex | undefined) {
  const detail = `The ${what} is not confirmed yet; ask again with the same call.`
  return { ...fault('settlement_pending', detail), status: 'pending', transaction } as const
}

/** The JSON of an operation. x402-specification-v2.md section 7. */
export function toJson(
  operation: Operation,
  answered: Failure | Success,
  { network, payer }: { network: string; payer?: string | undefined },
): object {
  const isVerify = operation === 'verify'
  if ('members' in answered) {
    const { members } = answered
    if (isVerify) return { isValid: true, payer, ...members }
    return { success: true, payer, transaction: '', network, ...members }
  }
  const { code, detail, status, transaction = '' } = answered
  return isVerify
    ? { isValid: false, invalidReason: code, invalidMessage: detail, payer }
    : {
        ...{ success: false, status, errorReason: code, errorMessage: detail },
        ...{ payer, transaction, network },
      }
}
