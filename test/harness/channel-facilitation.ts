import {
  concat,
  encodeAbiParameters,
  getAddress,
  type Hex,
  type LocalAccount,
  parseAbiParameters,
} from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Permit from '../../src/protocol/Permit'
import { inSeconds } from './buyer'
import { type ChannelTerms, signDeposit, signVoucher } from './channel'
import { type ChannelConfig, channelIdOf, channelOf, channelTypedData } from './channel-contract'
import { formOf } from './differential'
import type { Requirements } from './facilitation'

/**
 * Requests of a resource server to a facilitator about a payment channel of account 1 to account 7, which
 * are valid except for their faults.
 */

export type ChannelSpec = {
  kind: 'voucher' | 'deposit' | 'refund' | 'claim' | 'settle' | 'order' | 'other'
  method?: 'eip3009' | 'permit2'
  config?: Partial<ChannelConfig>
  /** Signs as the payer. */
  payer?: LocalAccount
  /** The signed maximum. */
  max?: bigint
  /** What a deposit brings, or a refund asks for. */
  amount?: bigint
  nonce?: bigint
  /** What is claimed; without it a refund has no rows. */
  charged?: bigint
  deposit?: Partial<ChannelTerms>
  faults?: readonly ChannelFault[]
}

/** What is wrong with any channel, in the order in which it is found. */
export const channelFaults = [
  ...(['acceptedScheme', 'acceptedNetwork', 'otherAsset', 'otherId', 'otherPayee'] as const),
  ...(['otherAuthorizer', 'noAuthorizer', 'otherToken', 'otherDelay', 'shortDelay'] as const),
] as const
export const voucherFaults = ['voucherSigner', 'highS', 'lowV'] as const
/** What is wrong with a deposit. */
export const depositFaults = {
  eip3009: [
    ...(['otherMethod', 'noName', 'otherName', 'expired', 'notYet'] as const),
    ...(['undeployed', 'depositSigner', 'depositHighS'] as const),
  ],
  permit2: [
    ...(['otherMethod', 'from', 'spender', 'token', 'permitAmount', 'witness', 'expired'] as const),
    ...(['depositSigner', 'depositHighS', 'approval', 'permit', 'permitOwner'] as const),
    ...(['permitAsset', 'permitSpender', 'permitDeadline', 'permitValue'] as const),
  ],
} as const
const otherFaults = ['badAmount', 'noClaimSignature', 'noRefundSignature', 'otherSigner'] as const
export type ChannelFault =
  | (typeof channelFaults)[number]
  | (typeof voucherFaults)[number]
  | (typeof depositFaults)['eip3009' | 'permit2'][number]
  | (typeof otherFaults)[number]

const authorizer = account(6).local()
const other = account(8).address
type Json = Record<string, unknown>
export type ChannelBody = {
  x402Version: number
  paymentPayload: Json & { payload: Json; accepted: Json }
  paymentRequirements: Requirements
}

export async function makeChannelBody(
  { id: network, asset, chainId }: NetworkConfig,
  spec: ChannelSpec,
): Promise<ChannelBody> {
  const { kind, method = 'eip3009', faults = [], payer = account(1).local() } = spec
  const { max = 100n, amount = 1_000n } = spec
  const is = (...names: readonly ChannelFault[]) => names.some((name) => faults.includes(name))
  const config = channelOf({
    ...{ payer: payer.address, token: is('otherToken') ? other : asset.address },
    ...(is('shortDelay') && { withdrawDelay: 10 }),
    ...spec.config,
  })
  const requirements: Requirements = {
    ...{ scheme: 'batch-settlement', network, amount: '100', maxTimeoutSeconds: 60 },
    payTo: is('otherPayee') ? other : config.receiver,
    asset: is('otherAsset') ? other : asset.address,
    extra: {
      ...(is('noName') ? {} : { name: is('otherName') ? 'X' : asset.eip712.name }),
      version: asset.eip712.version,
      ...(!is('noAuthorizer') && {
        receiverAuthorizer: is('otherAuthorizer') ? other : config.receiverAuthorizer,
      }),
      withdrawDelay: is('otherDelay') ? 900 : config.withdrawDelay,
      assetTransferMethod: method,
    },
  }
  const channelId = channelIdOf(config, chainId)
  const voucherSigner = is('voucherSigner') ? account(5).local() : payer
  const signature = formOf(
    await signVoucher(voucherSigner, chainId, channelId, max),
    (fault) => is(fault as ChannelFault),
    false,
  )
  const voucher = {
    channelId: is('otherId') ? `${channelId.slice(0, -4)}abcd` : channelId,
    maxClaimableAmount: is('badAmount') ? 'much' : String(max),
    signature,
  }
  const signer = is('otherSigner') ? account(5).local() : authorizer
  const typed = (type: 'ClaimBatch' | 'Refund', message: Json) =>
    signer.signTypedData(channelTypedData(chainId, type, message))
  const rowOf = async (totalClaimed: bigint) => ({
    claims: [
      {
        voucher: { channel: config, maxClaimableAmount: String(max) },
        signature,
        totalClaimed: String(totalClaimed),
      },
    ],
    ...(!is('noClaimSignature') && {
      claimAuthorizerSignature: await typed('ClaimBatch', {
        claims: [{ channelId, maxClaimableAmount: max, totalClaimed }],
      }),
    }),
  })
  const payloadOf = async (): Promise<Json> => {
    const presented = { channelConfig: config, voucher }
    const { nonce = 0n, charged } = spec
    switch (kind) {
      case 'deposit': {
        const terms = {
          amount,
          ...(is('expired') && { validBefore: inSeconds(-60) }),
          ...spec.deposit,
        }
        const accept = {
          ...requirements,
          asset: config.token,
          extra: { assetTransferMethod: method },
        }
        const from = is('depositSigner') ? account(5).local() : payer
        const deposit = await signDeposit(accept, from, config, terms)
        return { type: kind, ...presented, deposit: damaged(deposit, is) }
      }
      case 'claim':
        return { type: kind, ...(await rowOf(charged ?? max)) }
      case 'settle':
        return { type: kind, receiver: config.receiver, token: config.token }
      case 'order':
        return {
          ...{ type: 'refund', ...presented, amount: String(amount), refundNonce: String(nonce) },
          ...(charged === undefined ? { claims: [] } : await rowOf(charged)),
          ...(!is('noRefundSignature') && {
            refundAuthorizerSignature: await typed('Refund', { channelId, nonce, amount }),
          }),
        }
      default:
        return { type: kind, ...presented }
    }
  }
  const payload = await payloadOf()
  if (is('otherMethod'))
    requirements.extra.assetTransferMethod = method === 'permit2' ? 'eip3009' : 'permit2'
  const accepted = {
    ...requirements,
    ...(is('acceptedScheme') && { scheme: 'exact' }),
    ...(is('acceptedNetwork') && { network: 'eip155:10' }),
  }
  const extensions = await extensionsOf({ asset, chainId }, payer, amount, is)
  return {
    x402Version: 2,
    paymentPayload: { x402Version: 2, payload, accepted, extensions },
    paymentRequirements: requirements,
  }
}

type Is = (...names: readonly ChannelFault[]) => boolean

/** Faults in the signed deposit. */
function damaged(deposit: Json, is: Is): Json {
  const copy = structuredClone(deposit) as { authorization: Record<string, Json> } & Json
  const { erc3009Authorization: signed, permit2Authorization: permit } = copy.authorization
  const own = signed ?? permit ?? {}
  if (is('notYet')) own.validAfter = String(inSeconds(600))
  if (is('depositHighS'))
    own.signature = formOf(own.signature as Hex, (each) => each === 'highS', false)
  if (is('undeployed')) {
    const wrapped = parseAbiParameters('address, bytes, bytes')
    const inner = encodeAbiParameters(wrapped, [other, '0x1234', own.signature as Hex])
    own.signature = concat([inner, `0x${'6492'.repeat(16)}`])
  }
  if (permit === undefined) return copy
  const permitted = permit.permitted as Json
  if (is('from')) permit.from = other
  if (is('spender')) permit.spender = other
  if (is('token')) permitted.token = other
  if (is('permitAmount')) permitted.amount = '999'
  if (is('witness')) permit.witness = { channelId: `0x${'12'.repeat(32)}` }
  return copy
}

/** Gas-sponsoring extensions. */
async function extensionsOf(
  { asset, chainId }: Pick<NetworkConfig, 'asset' | 'chainId'>,
  payer: LocalAccount,
  amount: bigint,
  is: Is,
): Promise<Json | undefined> {
  const names = {
    from: is('permitOwner') ? other : payer.address,
    asset: is('permitAsset') ? other : asset.address,
    spender: is('permitSpender') ? other : getAddress(Permit.permit2Address),
  }
  if (is('approval')) {
    const info = { ...names, amount: '1', version: '1', signedTransaction: '0x1234' }
    return { erc20ApprovalGasSponsoring: { info, schema: {} } }
  }
  if (!is('permit', 'permitOwner', 'permitAsset', 'permitSpender', 'permitDeadline', 'permitValue'))
    return undefined
  const value = is('permitValue') ? amount + 1n : amount
  const deadline = is('permitDeadline') ? 1n : inSeconds(300)
  const fields = ['owner', 'spender', 'value', 'nonce', 'deadline']
  const signature = await payer.signTypedData({
    domain: { ...asset.eip712, chainId, verifyingContract: asset.address },
    types: {
      Permit: fields.map((name, index) => ({ name, type: index < 2 ? 'address' : 'uint256' })),
    },
    primaryType: 'Permit',
    message: { owner: payer.address, spender: names.spender, value, nonce: 0n, deadline },
  })
  const told = { amount: String(value), nonce: '0', deadline: String(deadline), signature }
  return { eip2612GasSponsoring: { info: { ...names, ...told, version: '1' }, schema: {} } }
}
