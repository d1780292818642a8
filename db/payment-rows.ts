import type { Transfer } from '../src/protocol/Transfer'
import type { Payment } from './Payment'
import type { PaymentRow } from './schema'

/** The payment of a row. */
export function fromRow(row: PaymentRow): Payment {
  const { id, state, nonceUsed, delivery, attempts, truncated, answered, createdAt } = row
  return {
    id,
    state,
    nonceUsed,
    delivery,
    attempts,
    truncated,
    answered,
    createdAt,
    transfer: {
      method: row.method,
      network: row.network,
      chainId: row.chainId,
      asset: row.asset,
      payer: row.payer,
      payee: row.payee,
      amountAtomic: row.amountAtomic,
      nonce: row.nonce,
      validAfter: row.validAfter,
      validBefore: row.validBefore,
      signature: row.signature,
      ...permit2612Of(row),
      ...uptoOf(row),
    },
    purpose: {
      product: row.product,
      protocol: row.protocol,
      merchant: row.merchant,
      route: row.route,
      fingerprint: row.fingerprint,
      resource: row.resource,
      idempotencyKey: row.idempotencyKey ?? undefined,
      challengeId: row.challengeId ?? undefined,
      credentialHash: row.credentialHash ?? undefined,
      bound: row.bound,
    },
    transaction: row.transactionHash,
    logIndex: row.logIndex ?? undefined,
    blockNumber: row.blockNumber ?? undefined,
    upstreamStatus: row.upstreamStatus ?? undefined,
    redeemTokenHash: row.redeemTokenHash ?? undefined,
    redeemUntil: row.redeemUntil ?? undefined,
    confirmedAt: row.confirmedAt ?? undefined,
    deliveredAt: row.deliveredAt ?? undefined,
  }
}

function uptoOf({ ceilingAtomic, facilitator }: PaymentRow): Pick<Transfer, 'upto'> {
  if (ceilingAtomic === null || facilitator === null) return {}
  return { upto: { ceilingAtomic, facilitator } }
}

type PermitColumns = 'permit2612Value' | 'permit2612Deadline' | 'permit2612Signature'

/** The permit of a row, when it has one. */
export function permit2612Of(row: Pick<PaymentRow, PermitColumns>): Pick<Transfer, 'permit2612'> {
  const { permit2612Value, permit2612Deadline, permit2612Signature } = row
  if (permit2612Value === null || permit2612Deadline === null || permit2612Signature === null) {
    return {}
  }
  return {
    permit2612: {
      valueAtomic: permit2612Value,
      deadline: permit2612Deadline,
      signature: permit2612Signature,
    },
  }
}
