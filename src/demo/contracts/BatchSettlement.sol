// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {Signatures} from "./Signatures.sol";

// Stand in for the contracts of x402's batch-settlement scheme on local chains: what clients call, the
// events, the errors and the order of the checks are theirs. Constants in place of immutables and a
// domain that is hashed per call let the runtime code be placed at the real addresses of every chain.

error ECDSAInvalidSignature();
error ECDSAInvalidSignatureLength(uint256 length);
error ECDSAInvalidSignatureS(bytes32 s);
error ReentrancyGuardReentrantCall();
error OnlyX402BatchSettlement();

interface Token {
    function balanceOf(address holder) external view returns (uint256);
    function transfer(address to, uint256 value) external returns (bool);
    /// @dev EIP-2612.
    function permit(address, address, uint256, uint256, uint8, bytes32, bytes32) external;
    /// @dev EIP-3009 in the form of USDC.
    function receiveWithAuthorization(address, address, uint256, uint256, uint256, bytes32, bytes calldata) external;
}

interface Collector {
    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata data) external;
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
            bytes memory reason = results[i];
            if (ok) continue;
            assembly ("memory-safe") {
                revert(add(reason, 32), mload(reason))
            }
        }
    }

    // Money in

    /// @dev The collector is anybody's contract: what arrived is measured.
    function deposit(ChannelConfig calldata config, uint128 amount, address collector, bytes calldata collectorData)
        external
        once
    {
        require(config.payer != address(0) && config.token != address(0), InvalidChannel());
        require(config.receiver != address(0) && config.receiverAuthorizer != address(0), InvalidChannel());
        uint40 delay = config.withdrawDelay;
        require(delay >= 15 minutes && delay <= 30 days, WithdrawDelayOutOfRange());
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
        require(Token(token).transfer(receiver, due));
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
        if (amount > 0) require(Token(config.token).transfer(config.payer, amount));
    }

    // Digests of EIP-712

    string private constant CONFIG = "ChannelConfig(address payer,address payerAuthorizer,address receiver,"
        "address receiverAuthorizer,address token,uint40 withdrawDelay,bytes32 salt)";
    string private constant VOUCHER = "Voucher(bytes32 channelId,uint128 maxClaimableAmount)";
    string private constant REFUND = "Refund(bytes32 channelId,uint256 nonce,uint128 amount)";
    string private constant ENTRY = "ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)";
    string private constant DOMAIN =
        "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";

    function getChannelId(ChannelConfig calldata config) public view returns (bytes32) {
        return digestOf(CONFIG, abi.encode(config));
    }

    function getVoucherDigest(bytes32 channelId, uint128 maxClaimableAmount) public view returns (bytes32) {
        return digestOf(VOUCHER, abi.encode(channelId, maxClaimableAmount));
    }

    function getRefundDigest(bytes32 channelId, uint256 nonce, uint128 amount) public view returns (bytes32) {
        return digestOf(REFUND, abi.encode(channelId, nonce, amount));
    }

    function getClaimBatchDigest(VoucherClaim[] calldata voucherClaims) public view returns (bytes32) {
        bytes memory entries;
        for (uint256 i = 0; i < voucherClaims.length; i++) {
            Voucher calldata voucher = voucherClaims[i].voucher;
            bytes32 id = getChannelId(voucher.channel);
            bytes memory entry = abi.encode(id, voucher.maxClaimableAmount, voucherClaims[i].totalClaimed);
            entries = abi.encodePacked(entries, hashOf(ENTRY, entry));
        }
        return digestOf(string.concat("ClaimBatch(ClaimEntry[] claims)", ENTRY), abi.encode(keccak256(entries)));
    }

    function digestOf(string memory kind, bytes memory fields) private view returns (bytes32) {
        bytes memory domain =
            abi.encode(keccak256("x402 Batch Settlement"), keccak256("1"), block.chainid, address(this));
        return keccak256(abi.encodePacked(hex"1901", hashOf(DOMAIN, domain), hashOf(kind, fields)));
    }

    function hashOf(string memory kind, bytes memory fields) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(keccak256(bytes(kind)), fields));
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
        require(Token(config.token).transfer(config.payer, amount));
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
        bytes32 nonce = keccak256(abi.encode(channelId, salt));
        Token(token).receiveWithAuthorization(
            payer, address(this), amount, validAfter, validBefore, nonce, signature
        );
        require(Token(token).transfer(x402BatchSettlement, amount));
    }
}

interface Permit2 {
    struct Amount {
        address tokenOrRecipient;
        uint256 value;
    }

    struct Permit {
        Amount permitted;
        uint256 nonce;
        uint256 deadline;
    }

    function permitWitnessTransferFrom(
        Permit calldata permit,
        Amount calldata transfer,
        address owner,
        bytes32 witness,
        string calldata witnessType,
        bytes calldata signature
    ) external;
}

/// @notice Collects by Permit2, whose witness is the channel, and approves Permit2 by EIP-2612 before
/// that where the payer signed it.
contract Permit2DepositCollector is DepositCollector {
    error Permit2612AmountMismatch();

    Permit2 public constant PERMIT2 = Permit2(0x000000000022D473030F116dDEE9F6B43aC78BA3);

    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata data)
        external
        onlySettlement
    {
        (uint256 nonce, uint256 deadline, bytes memory signature, bytes memory approval) =
            abi.decode(data, (uint256, uint256, bytes, bytes));
        if (approval.length > 0) approve(payer, token, amount, approval);
        PERMIT2.permitWitnessTransferFrom(
            Permit2.Permit(Permit2.Amount(token, amount), nonce, deadline),
            Permit2.Amount(x402BatchSettlement, amount),
            payer,
            keccak256(abi.encode(keccak256("DepositWitness(bytes32 channelId)"), channelId)),
            "DepositWitness witness)DepositWitness(bytes32 channelId)TokenPermissions(address token,uint256 amount)",
            signature
        );
    }

    /// @dev A used permit may have approved already, so a failure is no error.
    function approve(address payer, address token, uint256 amount, bytes memory approval) private {
        (uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s) =
            abi.decode(approval, (uint256, uint256, uint8, bytes32, bytes32));
        require(value == amount, Permit2612AmountMismatch());
        try Token(token).permit(payer, address(PERMIT2), value, deadline, v, r, s) {} catch {}
    }
}
