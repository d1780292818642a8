/** What a reason code means, and what the client does. Plain text. */
export type ReasonText = { meaning: string; client: string }

const window = { client: 'Sign again with a window that contains the time now.' }
const terms = { client: 'Sign exactly the terms of an offer, or of the requirements.' }
const otherCredential = { client: 'Sign a new payment, with a nonce that was never used.' }
const fund = { client: 'Send the asset to the payer, or pay from another address.' }
const otherWay = { client: 'Choose another offer, or ask the operator.' }
const signer = {
  client: 'Sign in the domain of the token with the key of the payer, on the right chain.',
}
const format = { client: 'Send the member in the form of the x402 v2 specification.' }

/** Reasons of both schemes, and of the facilitator alone. */
const general = {
  invalid_payload: { meaning: 'The payment, or the request, cannot be read.', ...format },
  invalid_x402_version: { meaning: '`x402Version` is not 2.', ...format },
  invalid_payment_requirements: {
    meaning: 'The requirements are malformed, or `accepted` is not one of the offers.',
    ...terms,
  },
  invalid_network: { meaning: 'The network is not offered or not settled here.', ...otherWay },
  unsupported_scheme: { meaning: 'The scheme is not offered or not settled here.', ...otherWay },
  unsupported_payload_type: { meaning: 'The payload is not of the accepted scheme.', ...format },
  eip6492_factory_not_allowed: {
    meaning: 'The wallet of the payer is not deployed.',
    client: 'Deploy the wallet first.',
  },
  settlement_pending: {
    meaning: 'The transfer was sent and is not confirmed yet.',
    client: 'Send the same call or credential again. Do not sign a second payment.',
  },
  settlement_failed: { meaning: 'The transfer did not happen.', ...otherCredential },
  delivery_failed: {
    meaning: 'The payment is settled and its answer failed.',
    client: 'Redeem the answer with the token of the problem, or read the order.',
  },
  idempotency_conflict: {
    meaning: 'The `Idempotency-Key` was used for another authorization.',
    client: 'Use a new key.',
  },
  asset_not_allowed: { meaning: '`assets` of `[facilitator]` lacks the asset.', ...otherWay },
  payee_not_allowed: {
    meaning: '`pay_to` of `[facilitator]` lacks the payee, or nothing may pay it.',
    ...otherWay,
  },
  amount_below_minimum: { meaning: '`min_amount` is above the amount.', ...otherWay },
} satisfies Record<string, ReasonText>

/** Reasons of EIP-3009, and of a failed transaction of either method. */
const exact = {
  invalid_exact_evm_scheme: { meaning: '`accepted.scheme` is not `exact`.', ...terms },
  invalid_exact_evm_network_mismatch: {
    meaning: '`accepted.network` is not that of the requirements.',
    ...terms,
  },
  invalid_exact_evm_missing_eip712_domain: {
    meaning: '`extra.name` or `extra.version` of the token is missing.',
    ...terms,
  },
  invalid_exact_evm_signature: { meaning: 'The signature is not of the payer.', ...signer },
  invalid_exact_evm_recipient_mismatch: { meaning: 'Another payee is signed.', ...terms },
  invalid_exact_evm_payload_authorization_value_mismatch: {
    meaning: 'Another amount is signed.',
    ...terms,
  },
  invalid_exact_evm_payload_authorization_valid_before: {
    meaning: 'The authorization has expired, or expires within seconds.',
    ...window,
  },
  invalid_exact_evm_payload_authorization_valid_after: {
    meaning: 'The authorization is not valid yet.',
    ...window,
  },
  invalid_exact_evm_nonce_already_used: {
    meaning: 'The authorization was settled or cancelled before.',
    ...otherCredential,
  },
  invalid_exact_evm_insufficient_balance: { meaning: 'The payer holds too little.', ...fund },
  invalid_exact_evm_eip3009_not_supported: { meaning: 'The token lacks EIP-3009.', ...otherWay },
  invalid_exact_evm_token_name_mismatch: {
    meaning: 'The signing domain has another name than the token.',
    ...signer,
  },
  invalid_exact_evm_token_version_mismatch: {
    meaning: 'The signing domain has another version than the token.',
    ...signer,
  },
  invalid_exact_evm_transaction_simulation_failed: {
    meaning: 'The transfer fails in simulation, for example because the token blocks an account.',
    client: 'Pay from another address.',
  },
  invalid_exact_evm_transaction_failed: {
    meaning: 'The transaction failed on chain. No money moved.',
    client: 'Send the same credential again.',
  },
  invalid_exact_evm_transfer_event_mismatch: {
    meaning: 'The transaction succeeded without the transfer of this payment.',
    client: 'Send the same credential again.',
  },
} satisfies Record<string, ReasonText>

/** Reasons of Permit2, with which `upto` always pays. */
const permit2 = {
  invalid_permit2_signature: { meaning: 'The signature is not of the payer.', ...signer },
  invalid_permit2_spender: {
    meaning: 'The signed spender is not the proxy of the scheme.',
    ...terms,
  },
  invalid_permit2_recipient_mismatch: { meaning: 'Another payee is signed.', ...terms },
  permit2_amount_mismatch: { meaning: 'Another amount is signed.', ...terms },
  permit2_token_mismatch: { meaning: 'Another token is signed.', ...terms },
  permit2_deadline_expired: { meaning: 'The signature has expired, or nearly.', ...window },
  permit2_not_yet_valid: { meaning: 'The signature is not valid yet.', ...window },
  permit2_invalid_nonce: { meaning: 'The nonce was used before.', ...otherCredential },
  permit2_insufficient_balance: { meaning: 'The payer holds too little.', ...fund },
  permit2_allowance_required: {
    meaning: 'The payer has not approved Permit2 for the token.',
    client: 'Approve Permit2 once; the page on wallets without gas has the ways.',
  },
  permit2_proxy_not_deployed: {
    meaning: 'The proxy of the scheme is not on this chain.',
    ...otherWay,
  },
  permit2_simulation_failed: {
    meaning: 'The transfer fails in simulation, for example because the token blocks an account.',
    client: 'Pay from another address.',
  },
  invalid_upto_evm_scheme: { meaning: '`accepted.scheme` is not `upto`.', ...terms },
  invalid_upto_evm_network_mismatch: {
    meaning: '`accepted.network` is not that of the requirements.',
    ...terms,
  },
  invalid_upto_evm_payload_settlement_exceeds_amount: {
    meaning: 'The charge is above the signed ceiling.',
    client: 'Settle at most the ceiling.',
  },
  invalid_upto_evm_transaction_failed: {
    meaning: 'The transaction failed on chain. No money moved.',
    client: 'Send the same call again.',
  },
  upto_often_unpaid: {
    meaning: 'Several answers of the payer, or of its address, failed and cost nothing.',
    client: 'Pay by `exact`, or send it again after `Retry-After`.',
  },
  upto_credit_exceeded: {
    meaning: 'The ceiling is above what the payer may owe to this merchant.',
    client: 'Pay by `exact`. Each payment to the merchant raises the limit.',
  },
  upto_losses_spent: {
    meaning: 'The merchant lost its limit of a day: it gives new payers no credit.',
    client: 'Pay by `exact`. Each payment to the merchant raises the limit.',
  },
  upto_facilitator_mismatch: {
    meaning: 'The signed relayer does not belong to this service.',
    client: 'Read `/supported` again and sign a relayer that it names.',
  },
} satisfies Record<string, ReasonText>

/** Reasons of the two extensions for wallets without gas. */
const sponsored = {
  invalid_eip2612_extension_format: { meaning: 'The permit cannot be read.', ...format },
  eip2612_deadline_expired: { meaning: 'The permit has expired, or nearly.', ...window },
  eip2612_from_mismatch: { meaning: 'The permit names another payer.', ...terms },
  eip2612_asset_mismatch: { meaning: 'The permit names another asset.', ...terms },
  eip2612_spender_not_permit2: { meaning: 'The permit is not for Permit2.', ...terms },
  permit2_2612_amount_mismatch: {
    meaning: 'The permit is not for exactly the signed amount.',
    ...terms,
  },
  invalid_erc20_approval_extension_format: {
    meaning: 'The signed approve cannot be read.',
    ...format,
  },
  erc20_approval_from_mismatch: { meaning: 'The approve names another payer.', ...terms },
  erc20_approval_asset_mismatch: { meaning: 'The approve names another asset.', ...terms },
  erc20_approval_spender_not_permit2: { meaning: 'The approve is not for Permit2.', ...terms },
} satisfies Record<string, ReasonText>

const approve = 'Sign the approve as the refusal says, or choose another way to pay.'
const approveMeanings = {
  tx_parse_failed: 'It is not a signed transaction of type 2.',
  tx_wrong_target: 'It does not go to the asset.',
  tx_wrong_selector: 'It does not call approve.',
  tx_invalid_calldata: 'Its calldata is not exactly an approve.',
  tx_wrong_spender: 'It does not approve Permit2.',
  tx_amount_too_low: 'It approves less than is paid.',
  tx_invalid_signature: 'Its signature is not canonical.',
  tx_signer_mismatch: 'The payer has not signed it.',
  tx_wrong_chain: 'It is for another chain.',
  tx_value_not_zero: 'It sends native coin.',
  tx_wrong_fee: 'Its tip is above its fee.',
  tx_gas_too_low: 'Its gas limit is too low for an approve.',
  tx_gas_too_high: 'Its gas limit is higher than clients set.',
  tx_fee_too_low: 'Its fee is below the base fee that may come.',
  tx_fee_too_high: 'Its fee is higher than clients set, or costs more than is sponsored.',
  tx_wrong_nonce: 'Its nonce is not the next one of the payer.',
  not_sponsored: 'The payment needs no approve, or none is sponsored for its payer or token.',
  payer_has_code: 'The payer has code or delegates to code.',
  balance_too_low: 'The payer holds less than `min_balance`.',
  balance_too_young: 'The payer has not held the asset for long enough.',
  already_sponsored: 'The payer was sponsored before.',
  budget_spent: 'The budget of the day for signed approves is spent.',
  broadcast_failed: 'The approve, or the grant for it, failed on chain.',
} as const

/**
 * Every x402 reason that an answer may have: `reason`, `invalidReason`, `errorReason`. The names are
 * those of the x402 reference where it has one.
 */
export const reasons: Readonly<Record<string, ReasonText>> = {
  ...general,
  ...exact,
  ...permit2,
  ...sponsored,
  ...Object.fromEntries(
    Object.entries(approveMeanings).map(([name, meaning]) => [
      `erc20_approval_${name}`,
      { meaning, client: approve },
    ]),
  ),
}
