import type { Authorization } from '../../../db/Authorization'
import type { Payment } from '../../../db/Payment'
import * as Crypto from '../../protocol/Crypto'
import * as Problem from '../../protocol/Problem'
import type { Settlement } from '../../settlement/settlement'
import type { Receipts } from '../answer/receipts'
import { receiptTokens } from '../answer/undelivered'

type LookupOptions = {
  settlement: Pick<Settlement, 'findById' | 'authorizations'>
  challengeSecrets: readonly Uint8Array[]
  receipts: Receipts
}

const tokenHeader = 'payment-token'

/**
 * `GET /api/payments/{id}`: the cost of an answer, for a client with the token of its header. A
 * stream is settled after its end, so its head has no receipt. Throws ProblemError.
 */
export function createLookup({ settlement, challengeSecrets, receipts }: LookupOptions) {
  return async (request: Request, id: string): Promise<Response> => {
    const given = request.headers.get(tokenHeader)
    if (given === null) {
      throw Problem.of('invalid-parameter', 'Payment-Token is missing: send that of the answer.', {
        members: { field: 'Payment-Token' },
      })
    }
    // Without its token an id causes no read.
    const tokens = receiptTokens(challengeSecrets, id)
    if (!tokens.some((token) => Crypto.equal(given, token))) throw unknown()
    const [payment, authorization] = await Promise.all([
      settlement.findById(id),
      settlement.authorizations.findById(id),
    ])
    if (payment === undefined && authorization === undefined) throw unknown()
    const body = {
      ...(authorization && describe(authorization)),
      ...(payment && settled(payment)),
      ...(payment?.state === 'confirmed' && { receipt: receipts.sign(payment) }),
    }
    return Response.json(body, { headers: { 'cache-control': 'no-store' } })
  }
}

function unknown(): Problem.ProblemError {
  return Problem.of(
    'not-found',
    'There is no payment with this id and this Payment-Token: send both as the answer had them.',
  )
}

function describe({ id, state, transfer, purpose, charge }: Authorization) {
  return {
    id,
    state,
    network: transfer.network,
    asset: transfer.asset,
    payer: transfer.payer,
    payTo: transfer.payee,
    resource: purpose.resource,
    ceiling: String(transfer.amountAtomic),
    ...(charge === undefined ? {} : { amount: String(charge.amountAtomic), units: charge.units }),
  }
}

/** Members that replace those of the authorization. */
function settled({ id, state, transfer, transaction }: Payment) {
  return { id, state, amount: String(transfer.amountAtomic), transaction }
}
