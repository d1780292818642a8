// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {Signatures} from "./Signatures.sol";

// Stand in for the contracts of x402's batch-settlement scheme on local chains: the interface, the
// events, the errors and the order of the checks are theirs. Constants in place of immutables and a
// domain that is hashed per call let the runtime code be placed at the real addresses of every chain.

error ECDSAInvalidSignature();
error ECDSAInvalidSignatureLength(uint256 length);
error ECDSAInvalidSignatureS(bytes32 s);
error FailedCall();
error ReentrancyGuardReentrantCall();
error SafeERC20FailedOperation(address token);
error OnlyX402BatchSettlement();

interface Token {
    function balanceOf(address holder) external view returns (uint256);
    function transfer(address to, uint256 value) external returns (bool);
    function permit(address owner, address spender, uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s)
        external;
    function receiveWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes calldata signature
    ) external;
}

interface Collector {
    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata data) external;
}

library Calls {
    function rethrow(bytes memory reason) internal pure {
        assembly ("memory-safe") {
            revert(add(reason, 32), mload(reason))
        }
    }

    /// @dev Some tokens answer nothing to a transfer.
    function pay(address token, address to, uint256 value) internal {
        (bool ok, bytes memory answer) = token.call(abi.encodeCall(Token.transfer, (to, value)));
        if (!ok) rethrow(answer);
        bool isPaid = answer.length == 0 ? token.code.length > 0 : uint256(bytes32(answer)) == 1;
        require(isPaid, SafeERC20FailedOperation(token));
    }
}

/// @notice Payment channels: a payer deposits, signs cumulative vouchers, and the receiver's side
/// claims what vouchers allow. Only what was claimed is safe from a withdrawal.
contract BatchSettlement {
    struct ChannelConfig {
        address payer;
        address payerAuthorizer;
        address receiver;
        address receiverAuthorizer;
        address token;
        uint40 withdrawDelay;
        bytes32 salt;
    }

    struct Voucher {
        ChannelConfig channel;
        uint128 maxClaimableAmount;
    }

    struct VoucherClaim {
        Voucher voucher;
        bytes signature;
        uint128 totalClaimed;
    }

    struct Funds {
        uint128 balance;
        uint128 totalClaimed;
    }

    struct Withdrawal {
        uint128 amount;
        uint40 initiatedAt;
    }

    struct Income {
        uint128 totalClaimed;
        uint128 totalSettled;
    }

    event ChannelCreated(bytes32 indexed channelId, ChannelConfig config);
    event ChannelClosed(bytes32 indexed channelId, ChannelConfig config);
    event Deposited(bytes32 indexed channelId, address indexed sender, uint128 amount, uint128 newBalance);
    event Claimed(bytes32 indexed channelId, address indexed sender, uint128 claimAmount, uint128 newTotalClaimed);
    event Settled(address indexed receiver, address indexed token, address indexed sender, uint128 amount);
    event Refunded(bytes32 indexed channelId, address indexed sender, uint128 amount);
    event WithdrawInitiated(bytes32 indexed channelId, uint128 amount, uint40 finalizeAfter);
    event WithdrawFinalized(bytes32 indexed channelId, address indexed sender, uint128 amount);

    error InvalidChannel();
    error WithdrawDelayOutOfRange();
    error ZeroDeposit();
    error InvalidCollector();
    error DepositOverflow();
    error DepositCollectionFailed();
    error EmptyBatch();
    error NotAuthorizedToClaim();
    error NotReceiverAuthorizer();
    error InvalidSignature();
    error ClaimExceedsCeiling();
    error ClaimExceedsBalance();
    error NothingToWithdraw();
    error WithdrawalAlreadyPending();
    error WithdrawAmountExceedsAvailable();
    error NotAuthorizedToFinalizeWithdraw();
    error WithdrawalNotPending();
    error WithdrawDelayNotElapsed();
    error NotAuthorizedToRefund();
    error InvalidRefundNonce();
    error ZeroRefund();

    bytes32 public constant CHANNEL_CONFIG_TYPEHASH = keccak256(
        "ChannelConfig(address payer,address payerAuthorizer,address receiver,address receiverAuthorizer,address token,uint40 withdrawDelay,bytes32 salt)"
    );
    bytes32 public constant VOUCHER_TYPEHASH = keccak256("Voucher(bytes32 channelId,uint128 maxClaimableAmount)");
    bytes32 public constant REFUND_TYPEHASH = keccak256("Refund(bytes32 channelId,uint256 nonce,uint128 amount)");
    bytes32 public constant CLAIM_ENTRY_TYPEHASH =
        keccak256("ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)");
    bytes32 public constant CLAIM_BATCH_TYPEHASH = keccak256(
        "ClaimBatch(ClaimEntry[] claims)ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)"
    );
    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    uint40 public constant MIN_WITHDRAW_DELAY = 15 minutes;
    uint40 public constant MAX_WITHDRAW_DELAY = 30 days;

    mapping(bytes32 channelId => Funds) public channels;
    mapping(bytes32 channelId => Withdrawal) public pendingWithdrawals;
    mapping(bytes32 channelId => uint256) public refundNonce;
    mapping(address receiver => mapping(address token => Income)) public receivers;
    bool private transient entered;

    modifier once() {
        require(!entered, ReentrancyGuardReentrantCall());
        entered = true;
        _;
        entered = false;
    }

    function multicall(bytes[] calldata data) external returns (bytes[] memory results) {
        results = new bytes[](data.length);
        for (uint256 i = 0; i < data.length; i++) {
            bool ok;
            (ok, results[i]) = address(this).delegatecall(data[i]);
            require(ok || results[i].length > 0, FailedCall());
            if (!ok) Calls.rethrow(results[i]);
        }
    }

    // Money in

    /// @dev The collector is anybody's contract: what arrived is measured.
    function deposit(ChannelConfig calldata config, uint128 amount, address collector, bytes calldata collectorData)
        external
        once
    {
        require(config.payer != address(0), InvalidChannel());
        require(config.receiver != address(0) && config.receiverAuthorizer != address(0), InvalidChannel());
        require(config.token != address(0), InvalidChannel());
        require(config.withdrawDelay >= MIN_WITHDRAW_DELAY, WithdrawDelayOutOfRange());
        require(config.withdrawDelay <= MAX_WITHDRAW_DELAY, WithdrawDelayOutOfRange());
        require(amount > 0, ZeroDeposit());
        require(collector != address(0), InvalidCollector());
        bytes32 id = getChannelId(config);
        Funds storage funds = channels[id];
        require(amount <= type(uint128).max - funds.balance, DepositOverflow());
        funds.balance += amount;
        uint256 expected = Token(config.token).balanceOf(address(this)) + amount;
        Collector(collector).collect(config.payer, config.token, amount, id, collectorData);
        require(Token(config.token).balanceOf(address(this)) == expected, DepositCollectionFailed());
        if (funds.balance == amount && funds.totalClaimed == 0) emit ChannelCreated(id, config);
        emit Deposited(id, msg.sender, amount, funds.balance);
    }

    // The receiver's side

    function claim(VoucherClaim[] calldata voucherClaims) external once {
        require(voucherClaims.length > 0, EmptyBatch());
        for (uint256 i = 0; i < voucherClaims.length; i++) {
            require(isReceiverSide(voucherClaims[i].voucher.channel), NotAuthorizedToClaim());
            book(voucherClaims[i]);
        }
    }

    function claimWithSignature(VoucherClaim[] calldata voucherClaims, bytes calldata authorizerSignature)
        external
        once
    {
        require(voucherClaims.length > 0, EmptyBatch());
        address authorizer = voucherClaims[0].voucher.channel.receiverAuthorizer;
        requireSigned(authorizer, getClaimBatchDigest(voucherClaims), authorizerSignature);
        for (uint256 i = 0; i < voucherClaims.length; i++) {
            require(voucherClaims[i].voucher.channel.receiverAuthorizer == authorizer, NotReceiverAuthorizer());
            book(voucherClaims[i]);
        }
    }

    function settle(address receiver, address token) external once {
        Income storage income = receivers[receiver][token];
        uint128 due = income.totalClaimed - income.totalSettled;
        if (due == 0) return;
        income.totalSettled += due;
        Calls.pay(token, receiver, due);
        emit Settled(receiver, token, msg.sender, due);
    }

    function refund(ChannelConfig calldata config, uint128 amount) external once {
        require(isReceiverSide(config), NotAuthorizedToRefund());
        giveBack(config, amount);
    }

    function refundWithSignature(
        ChannelConfig calldata config,
        uint128 amount,
        uint256 nonce,
        bytes calldata receiverAuthorizerSignature
    ) external once {
        bytes32 id = getChannelId(config);
        require(nonce == refundNonce[id], InvalidRefundNonce());
        requireSigned(config.receiverAuthorizer, getRefundDigest(id, nonce, amount), receiverAuthorizerSignature);
        giveBack(config, amount);
    }

    // The payer's side

    function initiateWithdraw(ChannelConfig calldata config, uint128 amount) external once {
        require(isPayerSide(config), InvalidChannel());
        require(amount > 0, NothingToWithdraw());
        bytes32 id = getChannelId(config);
        require(pendingWithdrawals[id].initiatedAt == 0, WithdrawalAlreadyPending());
        require(amount <= unclaimed(channels[id]), WithdrawAmountExceedsAvailable());
        uint40 time = uint40(block.timestamp);
        pendingWithdrawals[id] = Withdrawal(amount, time);
        emit WithdrawInitiated(id, amount, time + config.withdrawDelay);
    }

    function finalizeWithdraw(ChannelConfig calldata config) external once {
        require(isPayerSide(config), NotAuthorizedToFinalizeWithdraw());
        bytes32 id = getChannelId(config);
        Withdrawal memory pending = pendingWithdrawals[id];
        require(pending.initiatedAt != 0, WithdrawalNotPending());
        require(block.timestamp >= pending.initiatedAt + config.withdrawDelay, WithdrawDelayNotElapsed());
        uint128 amount = min(pending.amount, unclaimed(channels[id]));
        delete pendingWithdrawals[id];
        channels[id].balance -= amount;
        emit WithdrawFinalized(id, msg.sender, amount);
        announceIfClosed(id, config);
        if (amount > 0) Calls.pay(config.token, config.payer, amount);
    }

    // Digests of EIP-712

    function getChannelId(ChannelConfig calldata config) public view returns (bytes32) {
        return digestOf(keccak256(abi.encode(CHANNEL_CONFIG_TYPEHASH, config)));
    }

    function getVoucherDigest(bytes32 channelId, uint128 maxClaimableAmount) public view returns (bytes32) {
        return digestOf(keccak256(abi.encode(VOUCHER_TYPEHASH, channelId, maxClaimableAmount)));
    }

    function getRefundDigest(bytes32 channelId, uint256 nonce, uint128 amount) public view returns (bytes32) {
        return digestOf(keccak256(abi.encode(REFUND_TYPEHASH, channelId, nonce, amount)));
    }

    function getClaimBatchDigest(VoucherClaim[] calldata voucherClaims) public view returns (bytes32) {
        bytes32[] memory entries = new bytes32[](voucherClaims.length);
        for (uint256 i = 0; i < entries.length; i++) {
            Voucher calldata voucher = voucherClaims[i].voucher;
            entries[i] = keccak256(
                abi.encode(
                    CLAIM_ENTRY_TYPEHASH,
                    getChannelId(voucher.channel),
                    voucher.maxClaimableAmount,
                    voucherClaims[i].totalClaimed
                )
            );
        }
        return digestOf(keccak256(abi.encode(CLAIM_BATCH_TYPEHASH, keccak256(abi.encodePacked(entries)))));
    }

    function digestOf(bytes32 structHash) private view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                DOMAIN_TYPEHASH, keccak256("x402 Batch Settlement"), keccak256("1"), block.chainid, address(this)
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    // What the functions above share

    function isReceiverSide(ChannelConfig calldata config) private view returns (bool) {
        return msg.sender == config.receiver || msg.sender == config.receiverAuthorizer;
    }

    function isPayerSide(ChannelConfig calldata config) private view returns (bool) {
        return msg.sender == config.payer || msg.sender == config.payerAuthorizer;
    }

    function unclaimed(Funds storage funds) private view returns (uint128) {
        return funds.balance - funds.totalClaimed;
    }

    function min(uint128 a, uint128 b) private pure returns (uint128) {
        return a < b ? a : b;
    }

    function announceIfClosed(bytes32 id, ChannelConfig calldata config) private {
        if (channels[id].balance == 0 && channels[id].totalClaimed == 0) emit ChannelClosed(id, config);
    }

    function requireSigned(address signer, bytes32 digest, bytes calldata signature) private view {
        require(Signatures.check(signer, digest, signature) == Signatures.Fault.None, InvalidSignature());
    }

    /// @dev Totals only grow, so that an old claim changes nothing.
    function book(VoucherClaim calldata entry) private {
        ChannelConfig calldata config = entry.voucher.channel;
        bytes32 id = getChannelId(config);
        Funds storage funds = channels[id];
        uint128 total = entry.totalClaimed;
        if (total <= funds.totalClaimed) return;
        require(total <= entry.voucher.maxClaimableAmount, ClaimExceedsCeiling());
        require(total <= funds.balance, ClaimExceedsBalance());
        bytes32 digest = getVoucherDigest(id, entry.voucher.maxClaimableAmount);
        if (config.payerAuthorizer == address(0)) requireSigned(config.payer, digest, entry.signature);
        else requireKey(config.payerAuthorizer, digest, entry.signature);
        uint128 delta = total - funds.totalClaimed;
        funds.totalClaimed = total;
        receivers[config.receiver][config.token].totalClaimed += delta;
        emit Claimed(id, msg.sender, delta, total);
    }

    /// @dev An authorizer signs by a key, also where it has code.
    function requireKey(address signer, bytes32 digest, bytes calldata signature) private pure {
        (address recovered, Signatures.Fault fault) = Signatures.recover(digest, signature);
        require(fault != Signatures.Fault.Length, ECDSAInvalidSignatureLength(signature.length));
        if (fault == Signatures.Fault.S) revert ECDSAInvalidSignatureS(bytes32(signature[32:64]));
        require(fault == Signatures.Fault.None, ECDSAInvalidSignature());
        require(recovered == signer, InvalidSignature());
    }

    /// @dev The nonce rises also when nothing is left to give back.
    function giveBack(ChannelConfig calldata config, uint128 requested) private {
        require(requested > 0, ZeroRefund());
        bytes32 id = getChannelId(config);
        refundNonce[id]++;
        uint128 amount = min(requested, unclaimed(channels[id]));
        if (amount == 0) return;
        channels[id].balance -= amount;
        Withdrawal storage pending = pendingWithdrawals[id];
        if (amount < pending.amount) pending.amount -= amount;
        else delete pendingWithdrawals[id];
        emit Refunded(id, msg.sender, amount);
        announceIfClosed(id, config);
        Calls.pay(config.token, config.payer, amount);
    }
}

abstract contract DepositCollector is Collector {
    address public constant x402BatchSettlement = 0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003;

    /// @dev Otherwise anybody could have an authorization collected for a channel of its own.
    modifier onlySettlement() {
        require(msg.sender == x402BatchSettlement, OnlyX402BatchSettlement());
        _;
    }
}

/// @notice Collects by EIP-3009. The nonce is of the channel, so that the payer's signature names it.
contract Eip3009DepositCollector is DepositCollector {
    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata data)
        external
        onlySettlement
    {
        (uint256 validAfter, uint256 validBefore, uint256 salt, bytes memory signature) =
            abi.decode(data, (uint256, uint256, uint256, bytes));
        Token(token).receiveWithAuthorization(
            payer,
            address(this),
            amount,
            validAfter,
            validBefore,
            keccak256(abi.encode(channelId, salt)),
            signature
        );
        Calls.pay(token, x402BatchSettlement, amount);
    }
}

interface Permit2 {
    struct TokenPermissions {
        address token;
        uint256 amount;
    }

    struct PermitTransferFrom {
        TokenPermissions permitted;
        uint256 nonce;
        uint256 deadline;
    }

    struct SignatureTransferDetails {
        address to;
        uint256 requestedAmount;
    }

    function permitWitnessTransferFrom(
        PermitTransferFrom calldata permit,
        SignatureTransferDetails calldata details,
        address owner,
        bytes32 witness,
        string calldata witnessTypeString,
        bytes calldata signature
    ) external;
}

/// @notice Collects by Permit2, whose witness is the channel, and approves Permit2 by EIP-2612 before
/// that where the payer signed it.
contract Permit2DepositCollector is DepositCollector {
    event EIP2612PermitFailedWithReason(address indexed token, address indexed owner, string reason);
    event EIP2612PermitFailedWithPanic(address indexed token, address indexed owner, uint256 errorCode);
    event EIP2612PermitFailedWithData(address indexed token, address indexed owner, bytes data);

    error Permit2612AmountMismatch();

    Permit2 public constant PERMIT2 = Permit2(0x000000000022D473030F116dDEE9F6B43aC78BA3);
    bytes32 public constant DEPOSIT_WITNESS_TYPEHASH = keccak256("DepositWitness(bytes32 channelId)");
    string public constant DEPOSIT_WITNESS_TYPE_STRING =
        "DepositWitness witness)DepositWitness(bytes32 channelId)TokenPermissions(address token,uint256 amount)";

    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata data)
        external
        onlySettlement
    {
        (uint256 nonce, uint256 deadline, bytes memory signature, bytes memory approval) =
            abi.decode(data, (uint256, uint256, bytes, bytes));
        if (approval.length > 0) approve(payer, token, amount, approval);
        PERMIT2.permitWitnessTransferFrom(
            Permit2.PermitTransferFrom(Permit2.TokenPermissions(token, amount), nonce, deadline),
            Permit2.SignatureTransferDetails(x402BatchSettlement, amount),
            payer,
            keccak256(abi.encode(DEPOSIT_WITNESS_TYPEHASH, channelId)),
            DEPOSIT_WITNESS_TYPE_STRING,
            signature
        );
    }

    /// @dev A used permit may have approved already: a failure is an event.
    function approve(address payer, address token, uint256 amount, bytes memory approval) private {
        (uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s) =
            abi.decode(approval, (uint256, uint256, uint8, bytes32, bytes32));
        require(value == amount, Permit2612AmountMismatch());
        try Token(token).permit(payer, address(PERMIT2), value, deadline, v, r, s) {}
        catch Error(string memory reason) {
            emit EIP2612PermitFailedWithReason(token, payer, reason);
        } catch Panic(uint256 code) {
            emit EIP2612PermitFailedWithPanic(token, payer, code);
        } catch (bytes memory reason) {
            emit EIP2612PermitFailedWithData(token, payer, reason);
        }
    }
}
