import type { Transfer } from '../src/protocol/Transfer'
import type { Authorization } from './Authorization'
import type { Payment } from './Payment'
import type { AuthorizationRow, PaymentRow } from './schema'
import { authorizations, payments } from './schema'
import { decoderOf } from './select'

const decodePayment = decoderOf(payments)

/** The payment of a row as a database gives it. */
export const toPayment = (found: unknown): Payment => paymentOf(decodePayment(found))

/** The payment of a row. */
export function paymentOf(row: PaymentRow): Payment {
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
      client: row.client ?? undefined,
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
function permit2612Of(row: Pick<PaymentRow, PermitColumns>): Pick<Transfer, 'permit2612'> {
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

const decodeAuthorization = decoderOf(authorizations)

/** The authorization of a row as a database gives it. */
export const toAuthorization = (found: unknown): Authorization =>
  authorizationOf(decodeAuthorization(found))

function authorizationOf(row: AuthorizationRow): Authorization {
  const { id, state, chargeAtomic, units, isDelivered, upstreamStatus, truncated } = row
  return {
    id,
    state,
    transfer: {
      method: 'permit2',
      network: row.network,
      chainId: row.chainId,
      asset: row.asset,
      payer: row.payer,
      payee: row.payee,
      amountAtomic: row.ceilingAtomic,
      nonce: row.nonce,
      validAfter: row.validAfter,
      validBefore: row.validBefore,
      signature: row.signature,
      ...permit2612Of(row),
      upto: { ceilingAtomic: row.ceilingAtomic, facilitator: row.facilitator },
    },
    purpose: {
      product: row.product,
      protocol: 'x402',
      merchant: row.merchant,
      route: row.route,
      fingerprint: row.fingerprint,
      resource: row.resource,
      idempotencyKey: row.idempotencyKey ?? undefined,
      challengeId: undefined,
      credentialHash: row.credentialHash ?? undefined,
      client: row.client ?? undefined,
      bound: row.bound,
    },
    charge:
      chargeAtomic === null || units === null
        ? undefined
        : { amountAtomic: chargeAtomic, units: JSON.parse(units) },
    delivered: isDelivered && upstreamStatus !== null ? { upstreamStatus, truncated } : undefined,
    failedAt: row.failedAt ?? undefined,
    receivedAt: row.receivedAt,
    knownBlock: row.knownBlock,
    createdAt: row.createdAt,
  }
}

export function authorizationRow(authorization: Authorization): AuthorizationRow {
  const { id, transfer, purpose, state, charge, delivered, failedAt } = authorization
  const { upto, permit2612 } = transfer
  if (upto === undefined || purpose.product === 'desk') throw new Error('not an authorization')
  return {
    ...transfer,
    ...purpose,
    id,
    product: purpose.product,
    ceilingAtomic: upto.ceilingAtomic,
    facilitator: upto.facilitator,
    permit2612Value: permit2612?.valueAtomic ?? null,
    permit2612Deadline: permit2612?.deadline ?? null,
    permit2612Signature: permit2612?.signature ?? null,
    idempotencyKey: purpose.idempotencyKey ?? null,
    credentialHash: purpose.credentialHash ?? null,
    client: purpose.client ?? null,
    receivedAt: authorization.receivedAt,
    knownBlock: authorization.knownBlock,
    state,
    chargeAtomic: charge?.amountAtomic ?? null,
    units: charge ? JSON.stringify(charge.units) : null,
    isDelivered: delivered !== undefined,
    upstreamStatus: delivered?.upstreamStatus ?? null,
    truncated: delivered?.truncated ?? false,
    failedAt: failedAt ?? null,
    createdAt: authorization.createdAt,
  }
}
