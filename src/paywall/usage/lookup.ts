import { Type } from '@sinclair/typebox'
import type { Authorization } from '../../../db/Authorization'
import { type Payment, placeOf } from '../../../db/Payment'
import type { RefundLedger } from '../../../db/Refund'
import * as Crypto from '../../protocol/Crypto'
import * as Problem from '../../protocol/Problem'
import * as Refunds from '../../refunds/Refund'
import type { Settlement } from '../../settlement/settlement'
import { type Receipts, transactionOf } from '../answer/receipts'
import { receiptTokens } from '../answer/undelivered'

type LookupOptions = {
  settlement: Pick<Settlement, 'findById' | 'authorizations'>
  refunds: Pick<RefundLedger, 'find'>
  challengeSecrets: readonly Uint8Array[]
  receipts: Receipts
}

const tokenHeader = 'payment-token'

const text = Type.Optional(Type.String())

/** The answer of `GET /api/payments/{id}`. Amounts are atomic but for `refund.amount`. */
export const paymentAnswer = Type.Object({
  id: Type.String(),
  state: Type.String({ description: 'of the payment; before, that of the authorization by use' }),
  amount: Type.Optional(Type.String({ description: 'what was charged' })),
  ...{ transaction: text, network: text, asset: text, payer: text, payTo: text, resource: text },
  channel: Type.Optional(
    Type.String({ description: 'of a payment by channel, in place of a transaction' }),
  ),
  ceiling: Type.Optional(Type.String({ description: 'what was signed for an answer by use' })),
  units: Type.Optional(Type.Object({}, { description: 'what it has used' })),
  refund: Type.Optional(Refunds.schema),
  receipt: Type.Optional(Type.Object({}, { description: 'signed, once it is confirmed' })),
})

/**
 * `GET /api/payments/{id}`: the cost of an answer and its refund, for a client with the token of its
 * header. A stream is settled after its end, so its head has no receipt. Throws ProblemError.
 */
export function createLookup(options: LookupOptions) {
  const { settlement, refunds, challengeSecrets, receipts } = options
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
    const [payment, authorization, refund] = await Promise.all([
      settlement.findById(id),
      settlement.authorizations.findById(id),
      refunds.find(id),
    ])
    if (payment === undefined && authorization === undefined) throw unknown()
    const body = {
      ...(authorization && describe(authorization)),
      ...(payment && settled(payment)),
      ...(refund && { refund: Refunds.toJson(refund) }),
      ...(payment?.state === 'confirmed' && {
        receipt: receipts.sign({ ...payment, transaction: transactionOf(payment) }),
      }),
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
function settled(payment: Payment) {
  const { id, state, transfer } = payment
  return { id, state, amount: String(transfer.amountAtomic), ...placeOf(payment) }
}
