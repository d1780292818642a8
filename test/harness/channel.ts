import {
  type Address,
  encodeAbiParameters,
  type Hex,
  keccak256,
  type LocalAccount,
  parseAbiParameters,
  zeroHash,
} from 'viem'
import { account } from '../../src/demo/accounts'
import * as Permit from '../../src/protocol/Permit'
import { type Accept, ask, domains, inSeconds, type Required, randomNonce } from './buyer'
import {
  type ChannelConfig,
  channelIdOf,
  channelTypedData,
  depositPermitTypes,
  eip3009Collector,
  permit2Collector,
} from './channel-contract'

/** A buyer that pays by the x402 scheme `batch-settlement`, and sets every member explicitly. */

export type ChannelTerms = {
  network?: string
  kind?: 'voucher' | 'deposit' | 'refund'
  /** What the buyer takes as charged before; 0 by default. */
  base?: bigint
  /** The signed maximum: `base` and the price by default, of a refund `base`. */
  max?: bigint
  /** What is deposited, atomic. */
  amount?: bigint
  /** Members that replace those of the channel. */
  config?: Partial<ChannelConfig>
  /** What the payload names as the channel. */
  id?: Hex
  /** Signs the voucher in place of the payer. */
  voucherSigner?: LocalAccount
  signature?: (signature: Hex) => Hex
  /** End of the deposit's signature, unix seconds. */
  validBefore?: bigint
  /** Salt or nonce of the deposit, by which it is known. */
  depositSalt?: Hex
  /** Members that replace those of `accepted`. */
  accepted?: Record<string, unknown>
  /** Members that replace those of the payload. */
  payload?: Record<string, unknown>
}

/** The offer of channels on a network; undefined when there is none. */
export function channelOffer({ accepts }: Required, network: string): Accept | undefined {
  return accepts.find((each) => each.scheme === 'batch-settlement' && each.network === network)
}

/** The channel of a payer for an offer. */
export function channelFor(
  { payTo, asset, extra }: Accept,
  payer: Address,
  over: Partial<ChannelConfig> = {},
): ChannelConfig {
  return {
    payer,
    payerAuthorizer: payer,
    receiver: payTo,
    receiverAuthorizer: extra.receiverAuthorizer as Address,
    token: asset,
    withdrawDelay: Number(extra.withdrawDelay),
    salt: zeroHash,
    ...over,
  }
}

export const chainIdOf = ({ network }: Accept) => Number(network.slice('eip155:'.length))

/** The signature of a voucher. */
export function signVoucher(
  signer: LocalAccount,
  chainId: number,
  channelId: Hex,
  maxClaimableAmount: bigint,
): Promise<Hex> {
  const message = { channelId, maxClaimableAmount }
  return signer.signTypedData(channelTypedData(chainId, 'Voucher', message))
}

/** `PAYMENT-SIGNATURE` value for the channel offer of a network. */
export async function payChannel(
  required: Required,
  signer: LocalAccount,
  terms: ChannelTerms = {},
): Promise<string> {
  const { network = 'eip155:8453', kind = 'voucher', base = 0n } = terms
  const accept = channelOffer(required, network)
  if (accept === undefined) throw new Error(`no offer of channels on ${network}`)
  const config = channelFor(accept, signer.address, terms.config)
  const chainId = chainIdOf(accept)
  const channelId = terms.id ?? channelIdOf(config, chainId)
  const max = terms.max ?? (kind === 'refund' ? base : base + BigInt(accept.amount))
  const signature = await signVoucher(terms.voucherSigner ?? signer, chainId, channelId, max)
  const payload = {
    type: kind,
    channelConfig: config,
    voucher: {
      channelId,
      maxClaimableAmount: String(max),
      signature: terms.signature?.(signature) ?? signature,
    },
    ...(kind === 'deposit' && { deposit: await signDeposit(accept, signer, config, terms) }),
    ...(kind === 'refund' && terms.amount !== undefined && { amount: String(terms.amount) }),
    ...terms.payload,
  }
  const json = {
    x402Version: 2,
    payload,
    resource: required.resource,
    accepted: { ...accept, ...terms.accepted },
  }
  return Buffer.from(JSON.stringify(json)).toString('base64')
}

/** The member `deposit`, by the method of the offer. */
export async function signDeposit(
  accept: Accept,
  signer: LocalAccount,
  config: ChannelConfig,
  terms: ChannelTerms,
): Promise<Record<string, unknown>> {
  const { amount = 100_000n, depositSalt = randomNonce(), validBefore = inSeconds(300) } = terms
  const chainId = chainIdOf(accept)
  const channelId = channelIdOf(config, chainId)
  if (accept.extra.assetTransferMethod === 'permit2') {
    const permitted = { token: accept.asset, amount }
    const message = { permitted, spender: permit2Collector, deadline: validBefore }
    const signature = await signer.signTypedData({
      domain: { name: 'Permit2', chainId, verifyingContract: Permit.permit2Address },
      types: depositPermitTypes,
      primaryType: 'PermitWitnessTransferFrom',
      message: { ...message, nonce: BigInt(depositSalt), witness: { channelId } },
    })
    const permit2Authorization = {
      from: config.payer,
      permitted: { token: accept.asset, amount: String(amount) },
      spender: permit2Collector,
      nonce: String(BigInt(depositSalt)),
      deadline: String(validBefore),
      witness: { channelId },
      signature,
    }
    return { amount: String(amount), authorization: { permit2Authorization } }
  }
  const nonce = keccak256(
    encodeAbiParameters(parseAbiParameters('bytes32,bytes32'), [channelId, depositSalt]),
  )
  const signature = await signer.signTypedData({
    domain: { ...domains[chainId], chainId, verifyingContract: accept.asset },
    types: {
      ReceiveWithAuthorization: [
        { name: 'from', type: 'address' },
        { name: 'to', type: 'address' },
        { name: 'value', type: 'uint256' },
        { name: 'validAfter', type: 'uint256' },
        { name: 'validBefore', type: 'uint256' },
        { name: 'nonce', type: 'bytes32' },
      ],
    },
    primaryType: 'ReceiveWithAuthorization',
    message: {
      from: config.payer,
      to: eip3009Collector,
      value: amount,
      validAfter: 0n,
      validBefore,
      nonce,
    },
  })
  const window = { validAfter: '0', validBefore: String(validBefore) }
  const erc3009Authorization = { ...window, salt: depositSalt, signature }
  return { amount: String(amount), authorization: { erc3009Authorization } }
}

/** Asks for the price of a request and signs it: the header that pays for it. */
export async function signChannel(
  url: string,
  {
    init,
    buyer = 1,
    signer = account(buyer).local(),
    ...terms
  }: ChannelTerms & {
    init?: RequestInit
    buyer?: number
    signer?: LocalAccount
  } = {},
): Promise<Record<string, string>> {
  const asked = await ask(url, init)
  return { 'payment-signature': await payChannel(wholeOr(asked), signer, terms) }
}

/** With every offer: a header has not always room for all. */
function wholeOr({ required, whole }: Awaited<ReturnType<typeof ask>>): Required {
  return { ...required, accepts: whole.accepts ?? required.accepts }
}
