import type { Authorization } from './Authorization'
import { permit2612Of } from './payment-rows'
import type { AuthorizationRow } from './schema'

export function fromRow(row: AuthorizationRow): Authorization {
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

export function toRow(authorization: Authorization): AuthorizationRow {
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
