import type { Transfer } from '../src/protocol/Transfer'
import type { Authorization } from './Authorization'
import type { Payment } from './Payment'
import type { AuthorizationRow, PaymentRow } from './schema'
import { authorizations, payments } from './schema'
import { allOf, decoderOf } from './select'

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
      ...signedOf(row),
      method: row.method,
      amountAtomic: row.amountAtomic,
      ...uptoOf(row),
    },
    purpose: {
      ...soldOf(row),
      protocol: row.protocol,
      challengeId: row.challengeId ?? undefined,
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
  const upto = allOf({ ceilingAtomic, facilitator })
  return upto ? { upto } : {}
}

/** What a payment and an authorization have alike of what was signed. */
function signedOf(row: PaymentRow | AuthorizationRow) {
  const permit2612 = allOf({
    valueAtomic: row.permit2612Value,
    deadline: row.permit2612Deadline,
    signature: row.permit2612Signature,
  })
  return {
    network: row.network,
    chainId: row.chainId,
    asset: row.asset,
    payer: row.payer,
    payee: row.payee,
    nonce: row.nonce,
    validAfter: row.validAfter,
    validBefore: row.validBefore,
    signature: row.signature,
    ...(permit2612 && { permit2612 }),
  }
}

/** What they have alike of what was sold. */
function soldOf(row: PaymentRow | AuthorizationRow) {
  return {
    product: row.product,
    merchant: row.merchant,
    route: row.route,
    fingerprint: row.fingerprint,
    resource: row.resource,
    idempotencyKey: row.idempotencyKey ?? undefined,
    credentialHash: row.credentialHash ?? undefined,
    client: row.client ?? undefined,
    bound: row.bound,
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
      ...signedOf(row),
      method: 'permit2',
      amountAtomic: row.ceilingAtomic,
      upto: { ceilingAtomic: row.ceilingAtomic, facilitator: row.facilitator },
    },
    purpose: { ...soldOf(row), protocol: 'x402', challengeId: undefined },
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
